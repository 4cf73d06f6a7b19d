package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/tools/pgroles"
)

// SecretsOptions describe the Secrets of a control plane in Kubernetes.
type SecretsOptions struct {
	// Name is the prefix of the Secrets' names.
	Name string
	// NATS are the options of the server's configuration.
	NATS natsauth.Options
	// RelayCertificate adds a self-signed certificate of relays for these hosts, if there is none.
	RelayCertificate bool
	RelayHosts       []string
	// PostgreSQLHost adds passwords and connection strings of a database on this host. Empty means none.
	PostgreSQLHost string
}

// SecretChange is what [InitSecrets] did to one Secret.
type SecretChange struct {
	Name   string
	Change natsauth.Change
}

// secretFile is where a key of a Secret is in the folder.
type secretFile struct{ secret, key, path string }

// InitSecrets creates the missing keys of a control plane, and writes the configuration of NATS, as Secrets: one for
// each principal. It replaces no key, so it can run before each upgrade. Keys that the Secrets have already are used.
//
//	<name>-nats        nats-server.conf, with public keys only
//	<name>-state       the NATS keys of the state service, seal.seed, digest.key
//	<name>-admin       admin.token
//	<name>-runners     runners.seed, signing.seed
//	<name>-admission   admission.seed, controllers.seed
//	<name>-relay       relay.seed, relay.secret
//	<name>-gateway     gateway.seed, authority.key, host.key, person.key, cookies.key; authority.pub and person.pub,
//	                   which the state service has
//	<name>-relay-tls   tls.crt, tls.key, ca.crt
//	<name>-postgresql  password, of the administrator
//	<name>-<service>   database.password, database.url, of the role of each service in PostgreSQL
//	<name>-<principal> <principal>.seed, for each other principal of NATS: deploys, router, operator
//	<name>-cell-<cell> cell-<cell>.seed, for each other cell in the cell map
func InitSecrets(
	ctx context.Context, client coreclient.SecretInterface, options SecretsOptions,
) ([]SecretChange, error) {
	dir, err := os.MkdirTemp("", "lockstep-keys-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for the keys: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	files := options.files(dir)
	existing, err := readSecrets(ctx, client, files)
	if err != nil {
		return nil, err
	}
	if err := options.create(dir); err != nil {
		return nil, err
	}
	return writeSecrets(ctx, client, files, existing)
}

// files lists all keys of all Secrets.
func (o SecretsOptions) files(dir string) []secretFile {
	nats, state, relay := filepath.Join(dir, "nats"), filepath.Join(dir, "state"), filepath.Join(dir, "relay")
	files := []secretFile{
		{"nats", natsConfigKey, natsauth.ConfigFile(nats)},
		{"state", "seal.seed", filepath.Join(state, "seal.seed")},
		{"state", "digest.key", filepath.Join(state, "digest.key")},
		{"admin", "admin.token", filepath.Join(state, "admin.token")},
		{"runners", signingSeed, filepath.Join(dir, "runners", signingSeed)},
		{"admission", controllersSeed, filepath.Join(dir, "admission", controllersSeed)},
		{"relay", "relay.secret", filepath.Join(relay, "relay.secret")},
	}
	for _, key := range []string{"authority.key", "authority.pub", "host.key", "person.key", "person.pub", "cookies.key"} {
		files = append(files, secretFile{"gateway", key, filepath.Join(dir, "gateway", key)})
	}
	for name, holder := range natsauth.KeyHolders(o.NATS.Cell) {
		files = append(files, secretFile{holder, name + ".seed", natsauth.SeedFile(nats, name)})
	}
	for _, cell := range o.NATS.MapCells {
		name := natsauth.CellWriter(cell).Name
		files = append(files, secretFile{name, name + ".seed", natsauth.SeedFile(nats, name)})
	}
	if o.RelayCertificate {
		certificate, key := filepath.Join(relay, "relay.crt"), filepath.Join(relay, "relay.key")
		files = append(files, secretFile{"relay-tls", "tls.crt", certificate},
			secretFile{"relay-tls", "tls.key", key}, secretFile{"relay-tls", "ca.crt", certificate})
	}
	if o.PostgreSQLHost != "" {
		files = append(files, secretFile{"postgresql", "password", filepath.Join(dir, "password")})
		for _, service := range pgroles.Services() {
			role := filepath.Join(dir, "postgres", service)
			files = append(files, secretFile{service, "database.password", filepath.Join(role, "password")},
				secretFile{service, "database.url", filepath.Join(role, "url")})
		}
	}
	for i := range files {
		files[i].secret = o.Name + "-" + files[i].secret
	}
	return files
}

// natsConfigKey is written anew each time. All other keys are kept.
const natsConfigKey = "nats-server.conf"

// readSecrets writes the keys that exist to their files, and returns the Secrets by name.
func readSecrets(
	ctx context.Context, client coreclient.SecretInterface, files []secretFile,
) (map[string]*corev1.Secret, error) {
	existing := map[string]*corev1.Secret{}
	for _, f := range files {
		if _, read := existing[f.secret]; !read {
			secret, err := client.Get(ctx, f.secret, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				secret = nil
			case err != nil:
				return nil, fmt.Errorf("read the Secret %s: %w", f.secret, err)
			}
			existing[f.secret] = secret
		}
		if existing[f.secret] == nil || len(existing[f.secret].Data[f.key]) == 0 {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			return nil, fmt.Errorf("create a folder for the keys: %w", err)
		}
		if err := os.WriteFile(f.path, existing[f.secret].Data[f.key], 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", f.key, err)
		}
	}
	return existing, nil
}

// create creates the missing files.
func (o SecretsOptions) create(dir string) error {
	if _, err := natsauth.Init(filepath.Join(dir, "nats"), o.NATS); err != nil {
		return fmt.Errorf("create the keys of NATS: %w", err)
	}
	if _, _, err := InitKeys(filepath.Join(dir, "state")); err != nil {
		return err
	}
	if _, _, err := InitRunners(filepath.Join(dir, "runners")); err != nil {
		return err
	}
	if _, _, err := InitAdmission(filepath.Join(dir, "admission")); err != nil {
		return err
	}
	if _, _, err := InitRelay(filepath.Join(dir, "relay"), o.RelayHosts...); err != nil {
		return err
	}
	if err := createGatewayKeys(filepath.Join(dir, "gateway")); err != nil {
		return err
	}
	if o.PostgreSQLHost == "" {
		return nil
	}
	password := filepath.Join(dir, "password")
	if _, err := writeOnce(password, func() (string, error) { return rand.Text(), nil }); err != nil {
		return fmt.Errorf("create the password of PostgreSQL: %w", err)
	}
	passwords, _, err := InitDatabase(filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	for service, password := range passwords {
		_, err := writeOnce(filepath.Join(dir, "postgres", service, "url"), func() (string, error) {
			return pgroles.URL("postgres://"+o.PostgreSQLHost+"/lockstep?sslmode=disable", service, password)
		})
		if err != nil {
			return fmt.Errorf("create the connection string of %s: %w", service, err)
		}
	}
	return nil
}

// createGatewayKeys also writes the public keys that the state service needs.
func createGatewayKeys(dir string) error {
	keys, _, err := InitGateway(dir)
	if err != nil {
		return err
	}
	for _, file := range []string{keys.AuthorityFile, keys.PersonFile} {
		public := strings.TrimSuffix(file, ".key") + ".pub"
		if _, err := writeOnce(public, func() (string, error) { return PublicKey(file) }); err != nil {
			return fmt.Errorf("write a public key of the gateway: %w", err)
		}
	}
	return nil
}

// writeSecrets adds to the Secrets what the files have.
func writeSecrets(
	ctx context.Context, client coreclient.SecretInterface, files []secretFile, existing map[string]*corev1.Secret,
) ([]SecretChange, error) {
	wanted := map[string]map[string][]byte{}
	for _, f := range files {
		raw, err := os.ReadFile(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s of the Secret %s was not created", f.key, f.secret)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.key, err)
		}
		if wanted[f.secret] == nil {
			wanted[f.secret] = map[string][]byte{}
		}
		wanted[f.secret][f.key] = raw
	}
	changes := make([]SecretChange, 0, len(wanted))
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		change, err := writeSecret(ctx, client, name, wanted[name], existing[name])
		if err != nil {
			return nil, fmt.Errorf("write the Secret %s: %w", name, err)
		}
		changes = append(changes, SecretChange{Name: name, Change: change})
	}
	return changes, nil
}

func writeSecret(
	ctx context.Context, client coreclient.SecretInterface, name string, data map[string][]byte, secret *corev1.Secret,
) (natsauth.Change, error) {
	if secret == nil {
		_, err := client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"app.kubernetes.io/part-of": "lockstep", "app.kubernetes.io/managed-by": "lockstep",
			}},
			Data: data,
		}, metav1.CreateOptions{})
		return natsauth.Created, err //nolint:wrapcheck // wrapped by the caller
	}
	merged := maps.Clone(secret.Data)
	if merged == nil {
		merged = map[string][]byte{}
	}
	maps.Copy(merged, data)
	if maps.EqualFunc(merged, secret.Data, bytes.Equal) {
		return natsauth.Kept, nil
	}
	secret.Data = merged
	// The version that was read: a key that another run has created meanwhile is not replaced.
	_, err := client.Update(ctx, secret, metav1.UpdateOptions{})
	return natsauth.Updated, err //nolint:wrapcheck // wrapped by the caller
}

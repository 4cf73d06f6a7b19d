package helm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	helmcmd "helm.sh/helm/v4/pkg/cmd"
	release "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/tools/testkit/labtest"
	"lockstep.internal/tools/testkit/pg"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	// helmVariable makes the test binary the program helm.
	helmVariable = "LOCKSTEP_TEST_HELM"
	// jobsVariable is a URL that helm gets after each command: it runs the programs of jobs.
	jobsVariable = "LOCKSTEP_TEST_JOBS"
)

func runHelm() {
	root, err := helmcmd.NewRootCmd(os.Stdout, os.Args[1:], helmcmd.SetupLogging)
	if err == nil {
		err = root.Execute()
	}
	if jobs := os.Getenv(jobsVariable); err == nil && jobs != "" {
		var response *http.Response
		if response, err = http.Get(jobs); err == nil {
			err = response.Body.Close()
		}
	}
	if err != nil {
		slog.Error(err.Error())
		os.Exit(1)
	}
}

// TestBackupAndRestoreOfTheManual runs the commands of docs/operations.md as they stand there. The services, NATS and
// PostgreSQL are real, with the settings and keys of their pods, which have no containers in kubelab. Between backup
// and restore the database, the streams and all keys are lost. The dump has code of somebody who took deploys over.
func TestBackupAndRestoreOfTheManual(t *testing.T) {
	t.Parallel()
	m := newManual(t)
	blocks := m.blocks("Install in Kubernetes with Helm")
	require.Len(t, blocks, 3)
	install, backup, restore := blocks[0], blocks[1], blocks[2]

	m.run(install)
	m.startDatabase()
	secrets := m.createKeys()
	stop := m.startControlPlane()
	m.run("lockstep project create acme/platform/workspaces")
	var list struct {
		Projects []struct {
			ID string `json:"id"`
		} `json:"projects"`
	}
	require.NoError(t, json.Unmarshal([]byte(m.run("lockstep project list --output json")), &list))
	require.Len(t, list.Projects, 1)
	m.run("lockstep agent register my-cluster --credentials credentials.json --project " + list.Projects[0].ID)
	m.run("printf 'of the workspace' >token; lockstep ws create my-workspace --secret-env TOKEN=token")
	m.plantCode()
	m.run(backup)
	info, err := os.Stat(filepath.Join(m.dir, "lockstep-backup.tar"))
	require.NoError(t, err)
	require.Zero(t, info.Mode()&0o077, "the file has secrets")
	stop()
	m.loseNamespace()

	m.startDatabase()
	m.runJobs()
	m.run(restore)
	pgtest.RequirePlantedCodeRanAs(t, m.databaseURL().String(), "deploys", "lockstep_deploys")
	require.Equal(t, secrets, m.createKeys(), "the job keeps the restored keys")
	defer m.startControlPlane()()
	require.Contains(t, m.run("lockstep ws list"), "my-workspace")
	require.Eventually(t, func() bool {
		return strings.Contains(m.run("lockstep replay 'desired.>'"), "my-workspace")
	}, timeout, 100*time.Millisecond, "the desired state is published to the new streams")
}

// A backup without keys is worthless: nothing could read the secrets of workspaces.
func TestBackupWithoutKeysFails(t *testing.T) {
	t.Parallel()
	for name, secrets := range map[string]string{
		"refused": "exit 1",
		"none":    "echo 'items: []'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for program, script := range map[string]string{
				"helm": "echo '{}'", "kubectl": `case "$*" in *secrets*) ` + secrets + `;; esac`,
			} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
			}
			file := filepath.Join(dir, "backup.tar")
			backup := exec.CommandContext(t.Context(), "./backup.sh", "lockstep", "lockstep", file)
			backup.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := backup.CombinedOutput()
			require.Error(t, err, "%s", out)
			require.NoFileExists(t, file)
		})
	}
}

// manual runs the commands of docs/operations.md in a folder.
type manual struct {
	*cluster

	dir         string
	environment []string
	database    *pg.Server
}

func newManual(t *testing.T) *manual {
	t.Helper()
	m := &manual{cluster: connect(t, "lockstep"), dir: t.TempDir()}
	sources, err := filepath.Abs("..")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sources, filepath.Join(m.dir, "deploy")))
	self, err := os.Executable()
	require.NoError(t, err)
	bin := filepath.Join(m.dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	for program, script := range map[string]string{
		"helm": fmt.Sprintf("%s=1 exec %q \"$@\"", helmVariable, self),
		// Pods have no containers: their programs run here, with the address of the database in the environment.
		"kubectl": fmt.Sprintf(`if [ "$3" = exec ]; then while [ "$1" != -- ]; do shift; done; shift; exec "$@"; fi
exec %q kubectl "$@"`, m.kubelab()),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	m.environment = append(os.Environ(), "KUBECONFIG="+labtest.Kubeconfig(t),
		"PATH="+bin+":"+build(t)+":"+os.Getenv("PATH"))
	return m
}

// blocks returns the blocks of commands of a section.
func (m *manual) blocks(section string) []string {
	m.t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	require.NoError(m.t, err)
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	require.True(m.t, found, section)
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks []string
	for {
		_, rest, found := strings.Cut(text, "```console\n")
		if !found {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "```")
		blocks = append(blocks, strings.ReplaceAll("\n"+block, "\n$ ", "\n"))
		text = after
	}
}

// run runs commands in one shell and returns what they print.
func (m *manual) run(commands string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
	defer cancel()
	var out, errs bytes.Buffer
	shell := exec.CommandContext(ctx, "bash", "-euc", commands)
	shell.Dir, shell.Env, shell.Stdout, shell.Stderr = m.dir, m.environment, &out, &errs
	require.NoError(m.t, shell.Run(), "%s: %s", commands, &errs)
	return out.String()
}

// startDatabase starts an empty PostgreSQL, as the start script of its image leaves it.
func (m *manual) startDatabase() {
	m.t.Helper()
	m.database = pgtest.Server(m.t)
	_, err := m.database.CreateDatabase(m.t.Context(), "lockstep")
	require.NoError(m.t, err)
	// As in its container, the socket needs no password.
	m.environment = append(m.environment, "PGHOST="+m.database.Socket(), fmt.Sprintf("PGPORT=%d", m.database.Port()))
}

func (m *manual) databaseURL() *url.URL {
	m.t.Helper()
	u, err := url.Parse(m.database.URL())
	require.NoError(m.t, err)
	u.Path = "/lockstep"
	return u
}

func (m *manual) plantCode() {
	m.t.Helper()
	u := m.databaseURL()
	password := string(m.secrets()["lockstep-deploys"]["database.password"])
	u.User = url.UserPassword("lockstep_deploys", strings.TrimSpace(password))
	pgtest.PlantCode(m.t, u.String(), "deploys")
}

// runJobs makes helm wait until the job of the release that creates roles has done its work.
func (m *manual) runJobs() {
	m.t.Helper()
	jobs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		newJobs(m.t, m.cluster, m.release().Manifest, m.database).createRoles()
	}))
	m.t.Cleanup(jobs.Close)
	m.environment = append(m.environment, jobsVariable+"="+jobs.URL)
}

// createKeys runs the job of the release and returns the Secrets.
func (m *manual) createKeys() map[string]map[string][]byte {
	m.t.Helper()
	m.cluster.createKeys(m.release())
	return m.secrets()
}

func (m *manual) release() *release.Release {
	m.t.Helper()
	found, err := action.NewGet(m.helm).Run("lockstep")
	require.NoError(m.t, err)
	return found.(*release.Release)
}

// startControlPlane starts NATS with empty streams, and the services. The returned function stops them.
func (m *manual) startControlPlane() (stop func()) {
	m.t.Helper()
	p := newPods(m.t, m.cluster, m.release().Manifest, m.database)
	p.createRoles()
	api := p.start("state")["LOCKSTEP_API_LISTEN"]
	keys := filepath.Join(m.dir, "keys")
	p.write(keys, "lockstep-admin", nil)
	p.write(keys, "lockstep-operator", nil)
	m.environment = append(m.environment, "LOCKSTEP_SERVER=http://"+api,
		"LOCKSTEP_TOKEN_FILE="+filepath.Join(keys, "admin.token"),
		"LOCKSTEP_NATS_URL="+p.natsURL(), "LOCKSTEP_NATS_SEED_FILE="+filepath.Join(keys, "operator.seed"))
	p.start("deploys")
	p.start("relay")
	return p.stop
}

// loseNamespace deletes all that the chart and the job have created.
func (m *manual) loseNamespace() {
	m.t.Helper()
	// The pods first: a namespace waits for their grace periods.
	m.run("helm uninstall lockstep -n lockstep --wait")
	namespaces := m.client.CoreV1().Namespaces()
	require.NoError(m.t, namespaces.Delete(m.t.Context(), m.namespace, metav1.DeleteOptions{}))
	require.Eventually(m.t, func() bool {
		_, err := namespaces.Get(m.t.Context(), m.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, timeout, 100*time.Millisecond)
}

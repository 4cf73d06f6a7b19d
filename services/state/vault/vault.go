// Package vault encrypts the secret values of workspaces for storage in the database. Package secret seals them for
// agents with the key of the vault.
//
// A box opens only with its key and its label, so a row that was moved to another workspace does not open. The
// digest of values is keyed: it changes with the values and does not reveal them, so events may carry it.
package vault

import (
	"fmt"
	"strconv"

	"lockstep.internal/libs/seal"
)

// Kind of secret values.
type Kind string

// Kinds of secret values.
const (
	Env   Kind = "env"
	Files Kind = "files"
	// Pull is the kind of pull secrets. They belong to a project.
	Pull Kind = "pull"
)

// Vault seals and opens. It is safe for concurrent use.
type Vault struct {
	key    seal.Key
	digest seal.DigestKey
}

// Open creates a vault from an X25519 seed (nkeys) and a digest key, as `lockstep state init` writes them.
func Open(seed, digestKey string) (*Vault, error) {
	key, err := seal.ParseKey(seed)
	if err != nil {
		return nil, fmt.Errorf("seal seed: %w", err)
	}
	digest, err := seal.ParseDigestKey(digestKey)
	if err != nil {
		return nil, fmt.Errorf("digest key: %w", err)
	}
	return &Vault{key: key, digest: digest}, nil
}

// PublicKey is the key that agents trust as the sealer.
func (v *Vault) PublicKey() string { return v.key.Public() }

// Digest of values.
func (v *Vault) Digest(values seal.Values) string { return seal.Digest(v.digest, values) }

// Seal encrypts the values of one workspace. The result is stored in the database.
func (v *Vault) Seal(workspaceID string, kind Kind, values seal.Values) ([]byte, error) {
	box, err := values.Seal(label(workspaceID, kind), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("seal the %s secrets of workspace %s: %w", kind, workspaceID, err)
	}
	return box, nil
}

// Open decrypts what Seal returned.
func (v *Vault) Open(workspaceID string, kind Kind, box []byte) (seal.Values, error) {
	values, err := seal.OpenValues(box, label(workspaceID, kind), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("open the %s secrets of workspace %s: %w", kind, workspaceID, err)
	}
	return values, nil
}

// SealPull encrypts the pull secrets of a project.
func (v *Vault) SealPull(projectID int64, values seal.Values) ([]byte, error) {
	box, err := values.Seal(pullLabel(projectID), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("seal the pull secrets of project %d: %w", projectID, err)
	}
	return box, nil
}

// OpenPull decrypts what SealPull returned.
func (v *Vault) OpenPull(projectID int64, box []byte) (seal.Values, error) {
	values, err := seal.OpenValues(box, pullLabel(projectID), v.key.Public(), v.key)
	if err != nil {
		return nil, fmt.Errorf("open the pull secrets of project %d: %w", projectID, err)
	}
	return values, nil
}

// Key returns the private key, which seals values for agents.
func (v *Vault) Key() seal.Key { return v.key }

func pullLabel(projectID int64) string {
	return "project/" + strconv.FormatInt(projectID, 10) + "/pull"
}

func label(workspaceID string, kind Kind) string {
	return "workspace/" + workspaceID + "/" + string(kind)
}

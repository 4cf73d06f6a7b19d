package state_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/directory"
)

// newSSHKey returns a public key in OpenSSH's format.
func newSSHKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	wrapped, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(wrapped)))
}

// publishedSSHKey returns the last event of a key.
func (b *fixture) publishedSSHKey(t *testing.T, text string) (e events.AccessSSHKey, found bool) {
	t.Helper()
	k, err := directory.ParseSSHKey(text, "any")
	require.NoError(t, err)
	fingerprint := k.ID()
	last := b.last(t, topology.StreamAccess, topology.Cell("local").AccessSSHKey(fingerprint))
	if last == "" {
		return e, false
	}
	require.NoError(t, json.Unmarshal([]byte(last), &e))
	require.Equal(t, fingerprint, e.Fingerprint)
	return e, true
}

func TestSSHKeysArePublishedUntilTheyAreRemoved(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada, adas := admin.user(b, "ada")
	_, bobs := admin.user(b, "bob")
	text := newSSHKey(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	added := call(t, adas.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{
		PublicKey: text + " ada@laptop\n", ExpiresAt: timestamppb.New(expires),
	}).GetSshKey()
	require.Equal(t, "ada@laptop", added.GetName())
	require.Equal(t, text, added.GetPublicKey())
	require.True(t, strings.HasPrefix(added.GetFingerprint(), "SHA256:"))
	published := func(deleted bool, user int64) func() bool {
		return func() bool {
			e, found := b.publishedSSHKey(t, text)
			return found && e.Deleted == deleted && e.UserID == int(user)
		}
	}
	require.Eventually(t, published(false, ada), time.Minute, 10*time.Millisecond)
	e, _ := b.publishedSSHKey(t, text)
	require.WithinDuration(t, expires, *e.ExpiresAt, 0)

	// A key belongs to one person, and a name to one key.
	refused(t, errcode.AlreadyExists, bobs.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: text, Name: "x"})
	refused(t, errcode.AlreadyExists, adas.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: text, Name: "x"})
	refused(t, errcode.AlreadyExists, adas.sshKeys.AddSSHKey,
		&statev1.AddSSHKeyRequest{PublicKey: newSSHKey(t), Name: "ada@laptop"})
	refused(t, errcode.InvalidArgument, adas.sshKeys.AddSSHKey,
		&statev1.AddSSHKeyRequest{PublicKey: newSSHKey(t), Name: "old", ExpiresAt: timestamppb.New(time.Now())})
	refused(t, errcode.InvalidArgument, adas.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: "x", Name: "x"})
	// Nobody but administrators sees or removes the keys of others.
	refused(t, errcode.PermissionDenied, bobs.sshKeys.ListSSHKeys, &statev1.ListSSHKeysRequest{UserId: ada})
	refused(t, errcode.PermissionDenied, bobs.sshKeys.RemoveSSHKey,
		&statev1.RemoveSSHKeyRequest{UserId: ada, Key: "ada@laptop"})
	refused(t, errcode.NotFound, bobs.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{Key: added.GetFingerprint()})
	refused(t, errcode.InvalidArgument, bobs.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{})
	require.Empty(t, call(t, bobs.sshKeys.ListSSHKeys, &statev1.ListSSHKeysRequest{}).GetSshKeys())
	listed := call(t, admin.sshKeys.ListSSHKeys, &statev1.ListSSHKeysRequest{UserId: ada}).GetSshKeys()
	require.Len(t, listed, 1)
	require.Equal(t, added.GetFingerprint(), listed[0].GetFingerprint())

	call(t, adas.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{Key: added.GetFingerprint()})
	require.Eventually(t, published(true, ada), time.Minute, 10*time.Millisecond)
	require.Empty(t, call(t, adas.sshKeys.ListSSHKeys, &statev1.ListSSHKeysRequest{}).GetSshKeys())
	refused(t, errcode.NotFound, adas.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{Key: "ada@laptop"})
	bob := call(t, bobs.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: text, Name: "x"}).GetSshKey().GetUserId()
	require.Eventually(t, published(false, bob), time.Minute, 10*time.Millisecond)
}

func TestUserHasAtMostFiftySSHKeys(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	add := func(i int) *statev1.AddSSHKeyRequest {
		return &statev1.AddSSHKeyRequest{PublicKey: newSSHKey(t), Name: fmt.Sprint("key ", i)}
	}
	for i := range 50 {
		call(t, admin.sshKeys.AddSSHKey, add(i))
	}
	refused(t, errcode.ResourceExhausted, admin.sshKeys.AddSSHKey, add(50))
	call(t, admin.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{Key: "key 7"})
	call(t, admin.sshKeys.AddSSHKey, add(50))
}

// A backup of NATS from before the removal of a key does not bring it back.
func TestRemovedSSHKeyStaysRemovedAfterARestore(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	first, second := newSSHKey(t), newSSHKey(t)
	is := func(text string, deleted bool) func() bool {
		return func() bool { e, found := b.publishedSSHKey(t, text); return found && e.Deleted == deleted }
	}
	call(t, admin.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: first, Name: "first"})
	require.Eventually(t, is(first, false), time.Minute, 10*time.Millisecond)
	b.awaitAcknowledged(t)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.nats.Snapshot(copied))
	call(t, admin.sshKeys.RemoveSSHKey, &statev1.RemoveSSHKeyRequest{Key: "first"})
	call(t, admin.sshKeys.AddSSHKey, &statev1.AddSSHKeyRequest{PublicKey: second, Name: "second"})
	require.Eventually(t, is(first, true), time.Minute, 10*time.Millisecond)
	require.Eventually(t, is(second, false), time.Minute, 10*time.Millisecond)
	b.awaitAcknowledged(t)
	stop()
	require.NoError(t, b.nats.Restore(copied))
	require.True(t, is(first, false)(), "the backup has the removed key")

	b.start(t)
	require.Eventually(t, is(first, true), time.Minute, 10*time.Millisecond)
	require.Eventually(t, is(second, false), time.Minute, 10*time.Millisecond)
}

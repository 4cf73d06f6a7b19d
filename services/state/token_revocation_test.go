package state_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// token creates a token of a user; user 0 is the caller.
func (a as) token(b *fixture, name string, user int64) (*statev1.Token, as) {
	a.t.Helper()
	made := call(a.t, a.tokens.CreateToken, &statev1.CreateTokenRequest{Name: name, UserId: user})
	return made.GetToken(), b.as(a.t, made.GetValue())
}

// revoke returns the names of the tokens that the call revoked.
func (a as) revoke(id int64) []string {
	a.t.Helper()
	names := []string{}
	for _, token := range call(a.t, a.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: id}).GetRevoked() {
		require.True(a.t, token.GetRevoked())
		names = append(names, token.GetName())
	}
	return names
}

// Whoever stole a token and created others with it loses all of them: requests, streams, and access tokens for other
// services.
func TestRevokedTokenTakesTheTokensThatItCreatedWithIt(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"}).GetUser().GetId()
	d := b.readDirectory(t)
	v := verifier(t, d)

	stolen, thief := admin.token(b, "stolen", 0)
	child, thiefs := thief.token(b, "child", 0)
	require.Equal(t, stolen.GetId(), child.GetCreatedBy())
	grandchild, adas := thiefs.token(b, "of another user", ada)
	_, other := admin.token(b, "other", ada)
	listed := call(t, adas.tokens.ListTokens, &statev1.ListTokensRequest{}).GetTokens()
	require.Len(t, listed, 2)
	require.Equal(t, grandchild.GetId(), listed[0].GetId())
	require.Equal(t, child.GetId(), listed[0].GetCreatedBy())

	lost := map[string]as{"stolen": thief, "child": thiefs, "of another user": adas}
	access := map[string]string{}
	streams := map[string]*connect.ServerStreamForClient[statev1.WatchWorkspacesResponse]{}
	for name, who := range lost {
		access[name] = who.exchange(t, "deploys")
		until(t, d, func() bool { _, err := v.Verify(access[name]); return err == nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := who.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
		require.NoError(t, err)
		defer stream.Close()
		streams[name] = stream
	}

	require.Equal(t, []string{"stolen", "child", "of another user"}, admin.revoke(stolen.GetId()))
	for name, who := range lost {
		refused(t, errcode.Unauthenticated, who.directory.WhoAmI, &statev1.WhoAmIRequest{})
		require.False(t, streams[name].Receive(), name)
		require.Equal(t, errcode.Unauthenticated, fault.CodeOf(streams[name].Err()), "%s: %v", name, streams[name].Err())
		until(t, d, func() bool { _, err := v.Verify(access[name]); return fault.Is(err, errcode.Unauthenticated) })
	}
	call(t, other.directory.WhoAmI, &statev1.WhoAmIRequest{})
	require.Empty(t, admin.revoke(stolen.GetId()), "revoked before")
}

func TestAdministratorWhoLeavesTakesNobodyElsesTokens(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	create := &statev1.CreateUserRequest{Username: "ada", Admin: true}
	ada := call(t, admin.directory.CreateUser, create).GetUser().GetId()
	eve := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "eve"}).GetUser().GetId()
	old, adas := admin.token(b, "of ada", ada)
	_, replaced := adas.token(b, "replacement", 0)
	_, eves := adas.token(b, "of eve", eve)

	rotated := call(t, replaced.tokens.RevokeToken, &statev1.RevokeTokenRequest{Id: old.GetId(), KeepOtherUsers: true})
	require.Len(t, rotated.GetRevoked(), 1)
	_, another := replaced.token(b, "another of eve", eve)
	blocked := call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada, KeepOtherUsers: true})
	require.True(t, blocked.GetUser().GetBlocked())
	require.Empty(t, blocked.GetRevoked())
	for _, kept := range []as{eves, another} {
		call(t, kept.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	require.Len(t, call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada}).GetRevoked(), 2)
	for _, lost := range []as{eves, another} {
		refused(t, errcode.Unauthenticated, lost.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
}

func TestUnblockedUserNeedsANewToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	ada := call(t, admin.directory.CreateUser, &statev1.CreateUserRequest{Username: "ada"}).GetUser().GetId()
	_, old := admin.token(b, "old", ada)
	unblock := &statev1.UnblockUserRequest{Id: ada}
	refused(t, errcode.FailedPrecondition, admin.directory.UnblockUser, unblock)
	call(t, old.directory.WhoAmI, &statev1.WhoAmIRequest{})

	call(t, admin.directory.BlockUser, &statev1.BlockUserRequest{Id: ada})
	refused(t, errcode.PermissionDenied, old.directory.UnblockUser, unblock)
	unblocked := call(t, admin.directory.UnblockUser, unblock)
	require.False(t, unblocked.GetUser().GetBlocked())
	require.Len(t, unblocked.GetRevoked(), 1)
	refused(t, errcode.Unauthenticated, old.directory.WhoAmI, &statev1.WhoAmIRequest{})
	_, again := admin.token(b, "again", ada)
	call(t, again.directory.WhoAmI, &statev1.WhoAmIRequest{})
	refused(t, errcode.PermissionDenied, again.directory.UnblockUser, unblock)
}

func TestReplacementRevokesItsPredecessorAndStays(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	first, firsts := admin.token(b, "first", 0)
	_, sibling := firsts.token(b, "sibling", 0)
	_, second := firsts.token(b, "second", 0)
	_, child := second.token(b, "child", 0)

	require.Equal(t, []string{"first", "sibling"}, second.revoke(first.GetId()))
	for _, lost := range []as{firsts, sibling} {
		refused(t, errcode.Unauthenticated, lost.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	for _, kept := range []as{admin, second, child} {
		call(t, kept.directory.WhoAmI, &statev1.WhoAmIRequest{})
	}
	// Others reach what the replacement spared.
	require.Equal(t, []string{"second", "child"}, admin.revoke(first.GetId()))
}

// The notification of a revocation may arrive before the answer of the database. A token that revokes itself is
// answered all the same.
func TestTokenRevokesItself(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	database := proxyDatabase(t, b.cfg.Database.URL.Reveal())
	b.cfg.Database.URL = config.URL(database.url)
	b.start(t)
	token, laptop := b.as(t, b.admin).token(b, "laptop", 0)
	refused(t, errcode.InvalidArgument, laptop.tokens.RevokeToken,
		&statev1.RevokeTokenRequest{Id: token.GetId(), Own: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := laptop.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	defer stream.Close()

	release := database.holdCommits()
	answer := make(chan error, 1)
	go func() {
		_, err := laptop.tokens.RevokeToken(ctx, connect.NewRequest(&statev1.RevokeTokenRequest{Own: true}))
		answer <- err
	}()
	require.False(t, stream.Receive())
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(stream.Err()), "%v", stream.Err())
	_, err = laptop.tokens.ListTokens(ctx, connect.NewRequest(&statev1.ListTokensRequest{}))
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err), "%v", err)
	release()
	require.NoError(t, <-answer)
}

// databaseProxy passes the connections to PostgreSQL through, and can hold the answers to commits.
type databaseProxy struct {
	url string

	mu   sync.Mutex
	held chan struct{} // nil while answers pass
}

// proxyDatabase starts a proxy to the database. It runs until the test ends.
func proxyDatabase(t *testing.T, database string) *databaseProxy {
	t.Helper()
	target, err := pgx.ParseConfig(database)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(target.Host, target.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	through, err := url.Parse(database)
	require.NoError(t, err)
	query := through.Query()
	query.Del("host")
	query.Del("port")
	through.Host, through.RawQuery = listener.Addr().String(), query.Encode()
	p := &databaseProxy{url: through.String()}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			connections.Go(func() { p.serve(client, network, address) })
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, listener.Close())
		connections.Wait()
	})
	return p
}

// serve passes one connection through until either side ends it.
func (p *databaseProxy) serve(client net.Conn, network, address string) {
	defer client.Close()
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	requests := make(chan struct{})
	go func() {
		defer close(requests)
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(&heldWriter{proxy: p, to: client}, server)
	_ = client.Close()
	<-requests
}

// heldWriter holds writes with the answer to a commit.
type heldWriter struct {
	proxy *databaseProxy
	to    io.Writer
}

func (w *heldWriter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("COMMIT\x00")) {
		w.proxy.mu.Lock()
		held := w.proxy.held
		w.proxy.mu.Unlock()
		if held != nil {
			<-held
		}
	}
	return w.to.Write(b)
}

// holdCommits holds the answers to commits until release is called.
func (p *databaseProxy) holdCommits() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	p.held = held
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.held = nil
		close(held)
	}
}

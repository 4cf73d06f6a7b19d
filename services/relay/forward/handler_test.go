package forward_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/auth"
	"lockstep.internal/services/relay/policy"
)

func TestTheClusterIsToldByTheRelayWhoTheCallerIs(t *testing.T) {
	t.Parallel()
	target := &lastRequest{}
	f := newFixture(t, newAgent(t, target))
	ci, err := f.services.Sign("ci")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		user   int64
		header http.Header
		as     string
		groups []string
	}{
		"a reader":         {reader, nil, "lockstep:user:6", []string{"lockstep:role:reader"}},
		"a developer":      {developer, nil, "lockstep:user:8", []string{"lockstep:role:reader", "lockstep:role:developer"}},
		"an administrator": {admin, nil, "lockstep:user:5", []string{"lockstep:role:reader", "lockstep:role:developer", "lockstep:role:maintainer", "lockstep:role:owner", "lockstep:role:administrator"}},
		"a service":        {0, http.Header{"Authorization": {"Bearer " + ci}}, "lockstep:service:ci", []string{"lockstep:services"}},
		"with a second token": {
			0,
			http.Header{"Lockstep-Authorization": {f.token(reader)}, "Authorization": {"Bearer the cluster's"}, "X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}, "Proxy-Authorization": {"Basic x"}},
			"lockstep:user:6",
			[]string{"lockstep:role:reader"},
		},
		"who has it taken away": {reader, http.Header{"Connection": {"Impersonate-User, Impersonate-Group"}}, "lockstep:user:6", []string{"lockstep:role:reader"}},
	} {
		response, body := f.ask(c.user, http.MethodGet, "/agents/7/kubernetes/api/v1/pods", c.header)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", name, body)
		got := target.request()
		require.Equal(t, []string{c.as}, got.Header.Values("Impersonate-User"), name)
		require.Equal(t, c.groups, got.Header.Values("Impersonate-Group"), name)
		require.Equal(t, "kubernetes", got.Host, name)
		for _, gone := range []string{"Authorization", "Lockstep-Authorization", "Proxy-Authorization", "X-Remote-User", "X-Remote-Group", "X-Forwarded-For"} {
			require.Empty(t, got.Header.Values(gone), "%s: %s", name, gone)
		}
	}
}

func TestNobodyAppearsAsSomebodyElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &lastRequest{}))
	for _, header := range []string{"Impersonate-User", "impersonate-group", "IMPERSONATE-UID", "Impersonate-Extra-scopes", "Impersonate-Whatever"} {
		response, body := f.ask(admin, http.MethodGet, "/agents/7/kubernetes/api", http.Header{http.CanonicalHeaderKey(header): {"system:masters"}})
		require.Equal(t, http.StatusForbidden, response.StatusCode)
		require.Contains(t, body, "the relay sets impersonation")
	}
	_, r := f.send(developer, "GET /agents/7/kubernetes/api HTTP/1.1\r\nImpersonate-User : system:admin\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Zero(t, f.opened.Load())
	require.Len(t, f.publish(), 5, "who tries is on record")
	response, _ = f.ask(stranger, http.MethodGet, "/agents/7/kubernetes/api", http.Header{"Impersonate-User": {"x"}})
	require.Equal(t, http.StatusNotFound, response.StatusCode, "and for who may know of no agent there is none")
}

func TestReadersMayOnlyRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &lastRequest{}))
	for _, c := range []struct {
		method, path string
		header       http.Header
		status       int
	}{
		{"GET", "/kubernetes/api/v1/pods", nil, 200},
		{"HEAD", "/kubernetes/api/v1/pods", nil, 200},
		{"GET", "/kubernetes/version", nil, 200},
		{"POST", "/kubernetes/api/v1/pods", nil, 403},
		{"OPTIONS", "/kubernetes/api/v1/pods", nil, 403},
		{"PROPFIND", "/kubernetes/api/v1/pods", nil, 403},
		{"GET", "/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, 403},
		{"GET", "/kubernetes/api/v1/pods", http.Header{"Upgrade": {"x"}}, 403},
		{"GET", "/kubernetes/api/v1/nodes/a/proxy/run", nil, 403},
		{"GET", "/kubernetes/api/v1/namespaces/a/services/b/proxy", nil, 403},
		{"GET", "/kubernetes/api/v1/nodes/a/pro%78y/run", nil, 403},
		{"GET", "/kubernetes/api/v1/nodes/a%2Fproxy/run", nil, 403},
		{"GET", "/kubernetes/api/v1/nodes//a/proxy/run", nil, 403},
		{"GET", "/kubernetes//api/v1/nodes/a/proxy/run", nil, 403},
		{"GET", "/http/shop/", nil, 403},
		{"GET", "/tcp/shop", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}}, 403},
	} {
		response, body := f.ask(reader, c.method, "/agents/7"+c.path, c.header)
		require.Equal(t, c.status, response.StatusCode, "%s %s: %s", c.method, c.path, body)
	}
	for _, path := range []string{"/agents/7/kubernetes/api", "/agents/8/kubernetes/api", "/agents/7/http/shop/"} {
		response, body := f.ask(stranger, http.MethodGet, path, nil)
		require.Equal(t, http.StatusNotFound, response.StatusCode, body)
	}
}

// A token counts where it is meant for, and signs nothing by its own word.
func TestTokensThatAreNoTokensHere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &lastRequest{}))
	segment := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	claims := segment(fmt.Sprintf(`{"iss":"gitlab","aud":"gitlab-kas","sub":"ci","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	sign := func(cfg auth.Config) string {
		cfg.Lifetime = time.Minute
		s, err := auth.NewSigner(cfg)
		require.NoError(t, err)
		token, err := s.Sign("ci")
		require.NoError(t, err)
		return token
	}
	user := strings.TrimPrefix(f.token(developer), "Bearer ")
	for name, token := range map[string]string{
		"nothing":                         "",
		"no algorithm":                    segment(`{"alg":"none","typ":"JWT"}`) + "." + claims + ".",
		"no algorithm, otherwise spelt":   segment(`{"alg":"nOnE"}`) + "." + claims + ".",
		"another relay's, same secret":    sign(auth.Config{Issuer: "lockstep-relay", Audience: "lockstep-relay", Secrets: [][]byte{shared}}),
		"signed with a key that is known": sign(auth.Config{Issuer: "gitlab", Audience: "gitlab-kas", Secrets: [][]byte{f.people.key.Public}}),
		"a user's, as if shared":          segment(`{"alg":"HS256","typ":"at+jwt","kid":"k"}`) + "." + strings.Join(strings.Split(user, ".")[1:], "."),
		"a service's, as if a user's":     segment(`{"alg":"EdDSA","typ":"at+jwt","kid":"k"}`) + "." + claims + "." + segment("x"),
		"with more behind it":             user + "x",
		"an agent's":                      "lsa_0123456789",
	} {
		response, body := f.ask(0, http.MethodGet, "/agents/7/kubernetes/api", http.Header{"Authorization": {"Bearer " + token}})
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, name)
		if token != "" {
			require.NotContains(t, body, token, name)
		}
	}
	response, _ := f.ask(0, http.MethodGet, "/agents/7/kubernetes/api", http.Header{"Authorization": {"Bearer " + user, "Bearer " + user}})
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	require.Zero(t, f.opened.Load())
	require.Empty(t, f.publish())
	require.NotContains(t, f.logs.String(), user)
}

func TestATokenThatWasAcceptedIsLookedAtAgainWhenTheDirectoryChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &lastRequest{}))
	token := http.Header{"Authorization": {f.token(developer)}}
	response, _ := f.ask(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusOK, response.StatusCode)
	f.people.change(func() { f.people.users[developer] = directory.User{ID: developer, Blocked: true} })
	response, _ = f.ask(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	f.people.change(func() { f.people.users[developer] = directory.User{ID: developer}; f.people.key.ID = "another" })
	response, _ = f.ask(0, http.MethodGet, "/agents/7/kubernetes/api", token)
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)
}

func TestATargetHearsWhatIsForIt(t *testing.T) {
	t.Parallel()
	target := &lastRequest{}
	f := newFixture(t, newAgent(t, target))
	response, body := f.ask(0, http.MethodGet, "/agents/7/http/shop/a%2Fb?c=d&e=%20f", http.Header{
		"Lockstep-Authorization": {f.token(developer)}, "Authorization": {"Basic x"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"}, "X-Forwarded-For": {"10.9.8.7"}, "Impersonate-User": {"x"},
	})
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "answered", body)
	require.Equal(t, "8", response.Trailer.Get("Sum"))
	require.Empty(t, response.Header.Get("Keep-Alive"))
	got := target.request()
	require.Equal(t, "/a%2Fb?c=d&e=%20f", got.RequestURI)
	require.Equal(t, "Basic x", got.Header.Get("Authorization"), "it is the target's")
	require.Equal(t, "x", got.Header.Get("Impersonate-User"), "which means nothing to it")
	require.Equal(t, "127.0.0.1", got.Header.Get("X-Forwarded-For"))
	for _, gone := range []string{"X-Hop", "Lockstep-Authorization", "Lockstep-Connection"} {
		require.Empty(t, got.Header.Get(gone), gone)
	}
	response, body = f.ask(developer, http.MethodHead, "/agents/7/http/shop/", nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Empty(t, body)
}

func TestWhatIsOnRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if strings.HasPrefix(r.URL.Path, "/broken") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.Repeat("x", int(n)+5))
	})))
	_, r := f.send(developer, "POST /agents/7/http/shop/path?token=hidden HTTP/1.1\r\nContent-Length: 3\r\nX-Secret: hidden\r\n\r\nabc")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, "xxxxxxxx", read(t, response))
	all := f.publish()
	require.Len(t, all, 1)
	got := all[0]
	require.NotEmpty(t, got.RequestID)
	require.NotZero(t, got.StartedAt)
	require.Positive(t, got.Duration)
	got.RequestID, got.StartedAt, got.Duration = "", time.Time{}, 0
	require.Equal(t, audit.Record{
		UserID: developer, AgentID: agentID, ConnectionID: 1, Target: "shop", Protocol: audit.HTTP, Phase: audit.Ended, Method: "POST", Path: "/path", Status: http.StatusTeapot, BytesSent: 3, BytesReceived: 8,
	}, got)

	for name, c := range map[string]struct {
		user                 int64
		method, path         string
		status               int
		verb, recorded, says string
	}{
		"refused":     {reader, "DELETE", "/agents/7/kubernetes/api/v1/nodes/a?hidden", 403, "delete", "", "permission_denied"},
		"a stranger":  {stranger, "GET", "/agents/7/kubernetes/version", 404, "", "/version", "not_found"},
		"broken off":  {developer, "GET", "/agents/7/http/shop/broken?hidden", 503, "", "/broken", "unavailable"},
		"tcp, no way": {developer, "GET", "/agents/7/tcp/shop", 400, "", "", "invalid_argument"},
	} {
		response, body := f.ask(c.user, c.method, c.path, nil)
		require.Equal(t, c.status, response.StatusCode, body)
		all := f.publish()
		last := all[len(all)-1]
		require.Equal(t, audit.Ended, last.Phase, name)
		require.Equal(t, c.status, last.Status, name)
		require.Equal(t, c.verb, last.Verb, name)
		require.Equal(t, c.recorded, last.Path, name)
		require.Contains(t, last.Error, c.says, name)
		require.NotContains(t, fmt.Sprint(all), "hidden", name)
	}
}

func TestACallerWhoLeavesIsOnRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})))
	conn, r := f.send(developer, "GET /agents/7/kubernetes/api/v1/pods?watch HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	_, err = io.ReadFull(response.Body, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	all := f.publish()
	require.Len(t, all, 2, "it lasts")
	require.Equal(t, audit.Begun, all[0].Phase)
	require.Zero(t, all[0].Status)
	require.Equal(t, audit.Ended, all[1].Phase)
	require.Equal(t, all[0].RequestID, all[1].RequestID)
	require.Equal(t, "watch", all[1].Verb)
	require.EqualValues(t, 5, all[1].BytesReceived)
	require.Equal(t, "the caller has gone", all[1].Error)
}

// endless answers begin, and go on until they are given up.
func endless(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "begun")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func TestWhoMayNoLongerIsCutOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user   int64
		path   string
		change func(*fakeDirectory)
	}{
		"a watch":                      {reader, "/kubernetes/api/v1/pods?watch=true", func(p *fakeDirectory) { p.roles[reader] = directory.RoleNone }},
		"a watch, as few write it":     {reader, "/kubernetes/api/v1/pods?watch", func(p *fakeDirectory) { p.roles[reader] = directory.RoleNone }},
		"a log":                        {reader, "/kubernetes/api/v1/namespaces/a/pods/b/log?follow=T", func(p *fakeDirectory) { delete(p.users, reader) }},
		"an answer that does not end":  {developer, "/http/shop/events", func(p *fakeDirectory) { p.roles[developer] = directory.RoleReader }},
		"who is blocked":               {admin, "/http/shop/events", func(p *fakeDirectory) { p.users[admin] = directory.User{ID: admin, Admin: true, Blocked: true} }},
		"a watch as member of a group": {developer, "/kubernetes/api/v1/secrets?watch=1", func(p *fakeDirectory) { p.roles[developer] = directory.RoleReader }},
		"of an agent that is revoked":  {reader, "/kubernetes/api/v1/pods?watch=1", func(p *fakeDirectory) { p.agents[agentID] = directory.Agent{ID: agentID, ProjectID: 3, Revoked: true} }},
		"of an agent that is no more":  {admin, "/kubernetes/api/v1/pods?watch=1", func(p *fakeDirectory) { delete(p.agents, agentID) }},
		"an administrator no more": {admin, "/kubernetes/api/v1/pods?watch=1", func(p *fakeDirectory) {
			p.users[admin] = directory.User{ID: admin}
			p.roles[admin] = directory.RoleReader
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, newAgent(t, http.HandlerFunc(endless)))
			_, r := f.send(c.user, "GET /agents/7"+c.path+" HTTP/1.1\r\n\r\n")
			response, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, 5))
			require.NoError(t, err)
			f.people.change(func() {}) // something else
			f.people.change(func() { c.change(f.people) })
			_, err = io.ReadAll(response.Body)
			require.Error(t, err, "it does not look complete")
			all := f.publish()
			require.NotEmpty(t, all[len(all)-1].Error)
		})
	}
}

func TestADrainEndsWatchesAndWaitsForTheRest(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			endless(w, r)
			return
		}
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-let
		_, _ = io.WriteString(w, ", ended")
	})))
	answers := map[string]*http.Response{}
	for _, path := range []string{"/kubernetes/api/v1/pods?watch=1", "/http/shop/slow", "/http/shop/events"} {
		_, r := f.send(developer, "GET /agents/7"+path+" HTTP/1.1\r\n\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		_, err = io.ReadFull(response.Body, make([]byte, 5))
		require.NoError(t, err)
		answers[path] = response
	}
	finish, cut := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.handler.Drain(finish)
	}()
	require.Empty(t, read(t, answers["/kubernetes/api/v1/pods?watch=1"]), "a watch ends as watches do")
	close(let)
	require.Equal(t, ", ended", read(t, answers["/http/shop/slow"]))
	select {
	case <-drained:
		require.Fail(t, "one is under way")
	default:
	}
	cut()
	<-drained
	_, err := io.ReadAll(answers["/http/shop/events"].Body)
	require.Error(t, err, "what is cut does not look complete")
	require.Len(t, f.publish(), 4)
}

func TestRequestsAreLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(endless)))
	for range 3 {
		_, r := f.send(developer, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
		_, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
	}
	response, _ := f.ask(developer, http.MethodGet, "/agents/7/http/shop/", nil)
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	_, r := f.send(admin, "GET /agents/7/http/shop/ HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "somebody else is not held up by it")
	require.Equal(t, 4, f.handler.Requests())
}

func TestAnUpgradedConnectionEndsInEachDirectionByItself(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		heard, _ := io.ReadAll(rw)
		_, _ = conn.Write(bytes.ToUpper(heard))
	})))
	for _, path := range []string{"/kubernetes/api/v1/namespaces/a/pods/b/exec", "/http/shop/"} {
		conn, r := f.send(developer, "POST /agents/7"+path+" HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: spdy/3.1\r\n\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		_, err = io.WriteString(conn, "said to the end")
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		heard, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, "SAID TO THE END", string(heard))
		all := f.publish()
		require.Len(t, all, 2)
		require.Equal(t, http.StatusSwitchingProtocols, all[1].Status)
		require.EqualValues(t, 15, all[1].BytesSent)
		require.EqualValues(t, 15, all[1].BytesReceived)
		require.Empty(t, all[1].Error)
	}
}

func TestATargetsBytesAreCarriedAsTheyAre(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		heard, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(heard))
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	f := newFixture(t, newAgentAt(t, l.Addr().String()))
	conn, r := f.send(developer, "GET /agents/7/tcp/db HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nGET / HTTP/1.1\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	heard, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "GET / HTTP/1.1\r\n\r\n", string(heard))
	all := f.publish()
	require.Len(t, all, 2)
	require.EqualValues(t, 18, all[1].BytesSent)
	require.Equal(t, audit.TCP, all[1].Protocol)
}

// A caller that stops in the middle of what it sends hears what became of it all the same.
func TestAnAnswerDoesNotWaitForTheRestOfTheRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		if r.URL.Path == "/early" {
			_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		}
	})))
	for path, status := range map[string]int{"/broken": http.StatusServiceUnavailable, "/early": http.StatusRequestEntityTooLarge} {
		_, r := f.send(developer, "POST /agents/7/http/shop"+path+" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
		response, err := http.ReadResponse(r, nil)
		require.NoError(t, err, path)
		require.Equal(t, status, response.StatusCode, path)
		require.True(t, response.Close, "what is left of the request must not be taken for another one")
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err)
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	}
	require.Len(t, f.publish(), 2)
}

func TestMayAndGetAskAsTheCaller(t *testing.T) {
	t.Parallel()
	target := &lastRequest{}
	f := newFixture(t, newAgent(t, target))
	require.NoError(t, f.handler.MayRead(policy.Caller{UserID: reader}, agentID))
	require.Equal(t, errcode.NotFound, fault.CodeOf(f.handler.MayRead(policy.Caller{UserID: stranger}, agentID)))
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(f.handler.MayRead(policy.Caller{Subject: "cd"}, agentID)))
	text := ""
	get := func(caller policy.Caller) error {
		return f.handler.Get(t.Context(), caller, agentID, 1, "/api/v1/pods?limit=5", "application/json", func(r *http.Response) error {
			raw, err := io.ReadAll(r.Body)
			text = string(raw)
			return err
		})
	}
	require.NoError(t, get(policy.Caller{UserID: reader}))
	require.Equal(t, "answered", text)
	require.Equal(t, "lockstep:user:6", target.request().Header.Get("Impersonate-User"))
	require.Equal(t, "/api/v1/pods?limit=5", target.request().RequestURI)
	require.Equal(t, errcode.NotFound, fault.CodeOf(get(policy.Caller{UserID: stranger})))
	all := f.publish()
	require.Len(t, all, 2)
	require.Equal(t, "list", all[0].Verb)
	require.EqualValues(t, 8, all[0].BytesReceived)
	require.Contains(t, all[1].Error, "not_found")
}

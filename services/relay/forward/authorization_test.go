package forward_test

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/policy"
)

func TestRelaySetsImpersonation(t *testing.T) {
	t.Parallel()
	target := &recordingTarget{}
	f := newFixture(t, newAgent(t, target))
	ci, err := f.services.Sign("ci")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		user       int64
		header     http.Header
		wantUser   string
		wantGroups []string
	}{
		"a reader":    {reader, nil, "lockstep:user:6", []string{"lockstep:role:reader"}},
		"a developer": {developer, nil, "lockstep:user:8", []string{"lockstep:role:reader", "lockstep:role:developer"}},
		"an administrator": {
			admin, nil, "lockstep:user:5",
			[]string{
				"lockstep:role:reader", "lockstep:role:developer", "lockstep:role:maintainer", "lockstep:role:owner",
				"lockstep:role:administrator",
			},
		},
		"a service": {
			0, http.Header{"Authorization": {"Bearer " + ci}}, "lockstep:service:ci", []string{"lockstep:services"},
		},
		"with a second token": {
			0,
			http.Header{
				"Lockstep-Authorization": {f.token(reader)}, "Authorization": {"Bearer the cluster's"}, "X-Remote-User": {"root"},
				"X-Remote-Group": {"system:masters"}, "Proxy-Authorization": {"Basic x"},
			},
			"lockstep:user:6",
			[]string{"lockstep:role:reader"},
		},
		"impersonation named in Connection header": {
			reader,
			http.Header{"Connection": {"Impersonate-User, Impersonate-Group"}},
			"lockstep:user:6",
			[]string{"lockstep:role:reader"},
		},
	} {
		response, body := f.request(c.user, http.MethodGet, "/agents/7/kubernetes/api/v1/pods", c.header)
		require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", name, body)
		got := target.lastRequest()
		require.Equal(t, []string{c.wantUser}, got.Header.Values("Impersonate-User"), name)
		require.Equal(t, c.wantGroups, got.Header.Values("Impersonate-Group"), name)
		require.Equal(t, "kubernetes", got.Host, name)
		for _, removed := range []string{
			"Authorization", "Lockstep-Authorization", "Proxy-Authorization", "X-Remote-User", "X-Remote-Group",
			"X-Forwarded-For",
		} {
			require.Empty(t, got.Header.Values(removed), "%s: %s", name, removed)
		}
	}
}

func TestImpersonationHeadersAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	for _, header := range []string{
		"Impersonate-User", "impersonate-group", "IMPERSONATE-UID", "Impersonate-Extra-scopes", "Impersonate-Whatever",
	} {
		response, body := f.request(admin, http.MethodGet, "/agents/7/kubernetes/api", http.Header{
			http.CanonicalHeaderKey(header): {"system:masters"},
		})
		require.Equal(t, http.StatusForbidden, response.StatusCode)
		require.Contains(t, body, "the relay sets impersonation")
	}
	_, r := f.sendRaw(developer, "GET /agents/7/kubernetes/api HTTP/1.1\r\nImpersonate-User : system:admin\r\n\r\n")
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Zero(t, f.opened.Load())
	require.Len(t, f.auditRecords(), 5, "refused attempts are audited")
	response, _ = f.request(noRole, http.MethodGet, "/agents/7/kubernetes/api", http.Header{"Impersonate-User": {"x"}})
	require.Equal(t, http.StatusNotFound, response.StatusCode, "a user without a role gets 404")
}

func TestReadersAndReadTokensMayOnlyRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
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
		{
			"GET", "/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh",
			http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
			403,
		},
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
		response, body := f.request(reader, c.method, "/agents/7"+c.path, c.header)
		require.Equal(t, c.status, response.StatusCode, "%s %s: %s", c.method, c.path, body)
		header := http.Header{"Authorization": {f.token(admin, func(g *access.Grant) { g.Scope = access.ScopeRead })}}
		maps.Copy(header, c.header)
		response, body = f.request(0, c.method, "/agents/7"+c.path, header)
		require.Equal(t, c.status, response.StatusCode, "a read token of an administrator: %s %s: %s", c.method, c.path, body)
	}
	for _, path := range []string{"/agents/7/kubernetes/api", "/agents/8/kubernetes/api", "/agents/7/http/shop/"} {
		response, body := f.request(noRole, http.MethodGet, path, nil)
		require.Equal(t, http.StatusNotFound, response.StatusCode, body)
	}
}

// kubectl auth whoami and can-i create objects that the API server answers and does not store.
func TestReadersMayAskWhatTheyMayDo(t *testing.T) {
	t.Parallel()
	f := newFixture(t, newAgent(t, &recordingTarget{}))
	const authentication, authorization = "/apis/authentication.k8s.io/v1", "/apis/authorization.k8s.io/v1"
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"POST", authentication + "/selfsubjectreviews", 200},
		{"POST", authorization + "/selfsubjectaccessreviews", 200},
		{"POST", authorization + "/selfsubjectrulesreviews", 200},
		{"POST", authorization + "/subjectaccessreviews", 200},
		{"POST", authorization + "/namespaces/a/localsubjectaccessreviews", 200},
		{"PUT", authorization + "/selfsubjectaccessreviews", 403},
		{"POST", authorization + "/selfsubjectaccessreviews/a", 403},
		{"POST", authorization + "/selfsubjectaccessreviews/a/b", 403},
		{"POST", authorization + "//selfsubjectaccessreviews", 403},
		{"POST", authentication + "/tokenreviews", 403},
		{"POST", "/apis/example.com/v1/selfsubjectaccessreviews", 403},
		{"POST", "/api/v1/selfsubjectaccessreviews", 403},
	} {
		response, body := f.request(reader, c.method, "/agents/7/kubernetes"+c.path, nil)
		require.Equal(t, c.status, response.StatusCode, "%s %s: %s", c.method, c.path, body)
	}
	response, _ := f.request(reader, http.MethodPost, "/agents/7/kubernetes"+authentication+"/selfsubjectreviews",
		http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}})
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	require.Equal(t, "create", f.auditRecords()[0].Verb, "they are audited")
}

func TestRequestIsCancelledWhenAccessIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user   int64
		path   string
		change func(*fakeDirectory)
	}{
		"a watch": {
			reader,
			"/kubernetes/api/v1/pods?watch=true",
			func(d *fakeDirectory) { d.roles[reader] = directory.RoleNone },
		},
		"a watch without value": {
			reader,
			"/kubernetes/api/v1/pods?watch",
			func(d *fakeDirectory) { d.roles[reader] = directory.RoleNone },
		},
		"a log": {
			reader,
			"/kubernetes/api/v1/namespaces/a/pods/b/log?follow=T",
			func(d *fakeDirectory) { delete(d.users, reader) },
		},
		"a streaming response": {
			developer,
			"/http/shop/events",
			func(d *fakeDirectory) { d.roles[developer] = directory.RoleReader },
		},
		"a blocked user": {
			admin,
			"/http/shop/events",
			func(d *fakeDirectory) { d.users[admin] = directory.User{ID: admin, Admin: true, Blocked: true} },
		},
		"a watch after a group was lost": {
			developer,
			"/kubernetes/api/v1/secrets?watch=1",
			func(d *fakeDirectory) { d.roles[developer] = directory.RoleReader },
		},
		"a revoked agent": {
			reader,
			"/kubernetes/api/v1/pods?watch=1",
			func(d *fakeDirectory) { d.agents[agentID] = directory.Agent{ID: agentID, ProjectID: 3, Revoked: true} },
		},
		"a deleted agent": {
			admin,
			"/kubernetes/api/v1/pods?watch=1",
			func(d *fakeDirectory) { delete(d.agents, agentID) },
		},
		"a demoted administrator": {admin, "/kubernetes/api/v1/pods?watch=1", func(d *fakeDirectory) {
			d.users[admin] = directory.User{ID: admin}
			d.roles[admin] = directory.RoleReader
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, newAgent(t, http.HandlerFunc(endless)))
			_, r := f.sendRaw(c.user, "GET /agents/7"+c.path+" HTTP/1.1\r\n\r\n")
			response, err := http.ReadResponse(r, nil)
			require.NoError(t, err)
			_, err = io.ReadFull(response.Body, make([]byte, 5))
			require.NoError(t, err)
			f.directory.change(func() {}) // another change
			f.directory.change(func() { c.change(f.directory) })
			_, err = io.ReadAll(response.Body)
			require.Error(t, err, "the response must not be complete")
			all := f.auditRecords()
			require.NotEmpty(t, all[len(all)-1].Error)
		})
	}
}

func TestMayReadAndGetImpersonateCaller(t *testing.T) {
	t.Parallel()
	target := &recordingTarget{}
	f := newFixture(t, newAgent(t, target))
	reads, stranger := policy.Caller{UserID: reader, Scope: access.ScopeRead}, policy.Caller{
		UserID: noRole, Scope: access.ScopeRead,
	}
	require.NoError(t, f.handler.MayRead(reads, agentID))
	require.Equal(t, errcode.NotFound, fault.CodeOf(f.handler.MayRead(stranger, agentID)))
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(f.handler.MayRead(policy.Caller{Subject: "cd"}, agentID)))
	text := ""
	readText := func(r *http.Response) error {
		raw, err := io.ReadAll(r.Body)
		text = string(raw)
		return err
	}
	get := func(caller policy.Caller) error {
		return f.handler.Get(t.Context(), caller, agentID, 1, "/api/v1/pods?limit=5", "application/json", readText)
	}
	require.NoError(t, get(reads))
	require.Equal(t, "response", text)
	require.Equal(t, "lockstep:user:6", target.lastRequest().Header.Get("Impersonate-User"))
	require.Equal(t, "/api/v1/pods?limit=5", target.lastRequest().RequestURI)
	require.Equal(t, errcode.NotFound, fault.CodeOf(get(stranger)))
	all := f.auditRecords()
	require.Len(t, all, 2)
	require.Equal(t, "list", all[0].Verb)
	require.EqualValues(t, 8, all[0].BytesReceived)
	require.Contains(t, all[1].Error, "not_found")
}

// Rules and secrets are replaced while requests of services are in flight.
func TestServiceLosesItsRequestsWithItsRuleOrSecret(t *testing.T) {
	t.Parallel()
	watch := "/agents/7/kubernetes/api/v1/pods?watch=1"
	for name, lose := range map[string]func(*fixture){
		"rule": func(f *fixture) { f.handler.SetRules(nil) },
		"secret": func(f *fixture) {
			require.NoError(f.t, f.authenticator.SetServiceSecrets([][]byte{[]byte(strings.Repeat("another", 8))}))
			f.handler.Reauthorize()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := newBlockingTarget("begun")
			f := newFixture(t, newAgent(t, target))
			token, err := f.services.Sign("ci")
			require.NoError(t, err)
			require.Error(t, f.authenticator.SetServiceSecrets([][]byte{[]byte("too short")}), "nothing changes")
			c := f.connect()
			c.sendRaw("GET " + watch + " HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer " + token + "\r\n\r\n")
			<-target.started
			response, err := http.ReadResponse(c.r, nil)
			require.NoError(t, err)
			lose(f)
			_, err = io.ReadAll(response.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			<-target.cancelled
			response, body := f.request(0, http.MethodGet, watch, http.Header{"Authorization": {"Bearer " + token}})
			require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, response.StatusCode, body)
		})
	}
}

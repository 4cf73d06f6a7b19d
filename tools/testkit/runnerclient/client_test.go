package runnerclient_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/runnerclient"
)

func TestTokensTravelAsTheVersionSendsThem(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change      []func(*runnerclient.Config)
		runner, job string
	}{
		"until 17.10": {[]func(*runnerclient.Config){before1711}, "Private-Token", "Private-Token"},
		"since 17.11": {nil, "Runner-Token", "Job-Token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, test.change...)
			runner, err := f.client.Verify(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 11, runner.ID)
			require.Equal(t, time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), *runner.TokenExpiresAt)
			verify := f.received("POST /runners/verify")[0]
			require.Equal(t, "glrt-one", verify.Header.Get(test.runner))
			require.Equal(t, map[string]any{"token": "glrt-one", "system_id": "s_1"}, verify.JSON)

			_, err = f.client.Execute(t.Context(), f.job(t, ""), runnerclient.Script{Lines: []string{"x"}})
			require.NoError(t, err)
			request := f.received("POST /jobs/request")[0]
			require.Equal(t, "glrt-one", request.Header.Get(test.runner))
			require.Equal(t, "glrt-one", request.JSON["token"])
			for _, call := range []string{"PUT /jobs/:id", "PATCH /jobs/:id/trace"} {
				header := test.job
				if call[:5] == "PATCH" {
					header = "Job-Token"
				}
				r := f.received(call)[0]
				require.Equal(t, "glcbt-100", r.Header.Get(header), call)
				require.Len(t, tokenHeaders(r.Header), 1, call)
			}
			require.Equal(t, "glcbt-100", f.received("PUT /jobs/:id")[0].JSON["token"])
		})
	}
}

func tokenHeaders(h http.Header) []string {
	var found []string
	for _, name := range []string{"Private-Token", "Runner-Token", "Job-Token"} {
		if h.Get(name) != "" {
			found = append(found, name)
		}
	}
	return found
}

func TestRunnerRegistersRotatesItsTokenAndUnregisters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	runner, err := f.client.Register(t.Context(), runnerclient.Registration{
		Token: "registration", Description: "probe", TagList: "a,b", RunUntagged: true,
	})
	require.NoError(t, err)
	require.Equal(t, "glrt-new", runner.Token)
	require.Equal(t, "glrt-new", f.client.Token())
	register := f.received("POST /runners")[0]
	require.Equal(t, "registration", register.Header.Get("Runner-Token"))
	require.Equal(t, "a,b", register.JSON["tag_list"])
	require.Contains(t, register.JSON, "info")

	f.reply("POST /runners/reset_authentication_token", reply{
		status: http.StatusCreated, header: asJSON(), body: `{"token":"glrt-third","token_expires_at":null}`,
	})
	_, err = f.client.ResetToken(t.Context())
	require.NoError(t, err)
	reset := f.received("POST /runners/reset_authentication_token")[0]
	require.Empty(t, tokenHeaders(reset.Header))
	require.Equal(t, map[string]any{"token": "glrt-new"}, reset.JSON)

	require.NoError(t, f.client.UnregisterManager(t.Context()))
	require.Equal(t, "s_1", f.received("DELETE /runners/managers")[0].JSON["system_id"])
	require.NoError(t, f.client.Unregister(t.Context()))
	require.Equal(t, "glrt-third", f.received("DELETE /runners")[0].Header.Get("Runner-Token"))

	has, err := f.client.Discover(t.Context())
	require.NoError(t, err)
	require.False(t, has)
}

func asJSON() map[string]string { return map[string]string{"Content-Type": "application/json"} }

func TestLastUpdateIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 2 {
		job, err := f.client.RequestJob(t.Context())
		require.NoError(t, err)
		require.Nil(t, job)
	}
	requests := f.received("POST /jobs/request")
	require.NotContains(t, requests[0].JSON, "last_update")
	require.Equal(t, "one/i/7", requests[1].JSON["last_update"])
}

func TestThreeRefusalsDisableTheRunner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	refusal := reply{status: http.StatusForbidden, header: asJSON(), body: `{"code":"permission_denied","message":"no"}`}
	f.reply("POST /jobs/request", refusal, refusal, reply{status: http.StatusConflict}, refusal, refusal, refusal)
	for i := range 6 {
		_, err := f.client.RequestJob(t.Context())
		if i == 2 {
			require.ErrorIs(t, err, runnerclient.ErrTryAgain)
			continue
		}
		require.Equal(t, http.StatusForbidden, runnerclient.StatusOf(err))
		require.ErrorContains(t, err, "POST /jobs/request: 403 permission_denied: no")
	}
	_, err := f.client.RequestJob(t.Context())
	require.ErrorIs(t, err, runnerclient.ErrDisabled)
	require.Len(t, f.received("POST /jobs/request"), 6)
	require.ErrorIs(t, f.client.Run(t.Context(), runnerclient.Runs{}), runnerclient.ErrDisabled)
}

// TestAnswersThatNoRunnerAccepts is about what the contract requires of the server.
func TestAnswersThatNoRunnerAccepts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call  string
		reply reply
		send  func(*testing.T, *fixture) error
		want  string
	}{
		"verify as text": {
			"POST /runners/verify",
			reply{status: 200, header: map[string]string{"Content-Type": "text/plain"}},
			verify, "not application/json",
		},
		"verify without id": {"POST /runners/verify", reply{status: 200, header: asJSON(), body: `{}`}, verify, "has no id"},
		"invalid JSON": {
			"POST /runners/verify", reply{status: 200, header: asJSON(), body: `{`}, verify, "decode the answer",
		},
		"job without steps": {
			"POST /jobs/request",
			reply{status: 201, header: asJSON(), body: `{"id":1,"token":"t","git_info":{}}`},
			request, "would not accept it",
		},
		"trace without Range": {"PATCH /jobs/:id/trace", reply{status: 202}, patch, "no valid header Range"},
		"invalid Range": {
			"PATCH /jobs/:id/trace",
			reply{status: 416, header: map[string]string{"Range": "bytes 0-1"}},
			patch, "invalid header Range",
		},
		"invalid interval": {
			"PATCH /jobs/:id/trace",
			reply{status: 403, header: map[string]string{"X-GitLab-Trace-Update-Interval": "0"}},
			patch, "invalid header X-",
		},
		"trace 404":  {"PATCH /jobs/:id/trace", reply{status: 404}, patch, "404"},
		"update 400": {"PUT /jobs/:id", reply{status: 400}, update, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.reply(test.call, test.reply)
			require.ErrorContains(t, test.send(t, f), test.want)
		})
	}
}

func verify(t *testing.T, f *fixture) error {
	t.Helper()
	_, err := f.client.Verify(t.Context())
	return err
}

func request(t *testing.T, f *fixture) error {
	t.Helper()
	_, err := f.client.RequestJob(t.Context())
	return err
}

func patch(t *testing.T, f *fixture) error {
	t.Helper()
	_, err := f.client.PatchTrace(t.Context(), &runnerclient.Job{ID: 1, Token: "t"}, 0, []byte("x"))
	return err
}

func update(t *testing.T, f *fixture) error {
	t.Helper()
	_, err := f.client.UpdateJob(t.Context(), &runnerclient.Job{ID: 1, Token: "t"}, runnerclient.Update{State: "success"})
	return err
}

// TestRedirectKeepsBodyAndTokens is about routers that answer 307.
func TestRedirectKeepsBodyAndTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var redirects atomic.Int64
	router := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		redirects.Add(1)
		http.Redirect(w, r, f.URL+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(router.Close)
	direct := f.client
	f.client = runnerclient.New(runnerclient.Config{URL: router.URL, Token: "glrt-one", MaxWait: time.Millisecond})
	t.Cleanup(f.client.Close)
	defer direct.Close()
	job := f.job(t, `,"artifacts":[{"artifact_type":"archive","artifact_format":"zip","when":"always"}]`)
	result, err := f.client.Execute(t.Context(), job, runnerclient.Script{
		Lines: []string{"x"}, Files: map[string][]byte{"a": []byte("b")},
	})
	require.NoError(t, err)
	require.Equal(t, "success", result.State)
	f.requireTrace(t, result)
	require.NotEmpty(t, f.artifacts["100"])
	require.GreaterOrEqual(t, redirects.Load(), int64(4))
}

func TestRunExecutesJobsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.reply("POST /jobs/request",
		reply{status: http.StatusInternalServerError}, reply{status: http.StatusConflict}, reply{usual: true})
	f.mu.Lock()
	f.jobs = append(f.jobs, `{"id":100,"token":"t","git_info":{},"steps":[{"name":"script","script":["x"]}]}`)
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var done atomic.Int64
	require.NoError(t, f.client.Run(ctx, runnerclient.Runs{
		Concurrency: 2,
		Script:      func(*runnerclient.Job) runnerclient.Script { return runnerclient.Script{Lines: []string{"x"}} },
		Done: func(job *runnerclient.Job, result runnerclient.Result, err error) {
			if err == nil && job.ID == 100 && result.State == "success" {
				done.Add(1)
			}
			cancel()
		},
	}))
	require.EqualValues(t, 1, done.Load())
}

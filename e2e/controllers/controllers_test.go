// Package controllers tests the sample admission controllers in deploy/controllers with the example requests in
// schemas/admission, signed as Standard Webhooks define. The programs are built and run as a user would.
package controllers_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/samples"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	secret = "whsec_c2FtcGxlIHNlY3JldCBvZiBhIHRlc3QgMzIgYnl0ZXM="
	rules  = `{
  "projects": [123, 245],
  "zones": {"98123": "us-west", "5": "eu-west", "6": "us-west"},
  "runners": {"822993167": [98123], "822993168": [5]}
}`
)

func TestGoController(t *testing.T) {
	t.Parallel()
	decides(t, samples.Go(t, "deploy/controllers/go"))
}

func TestTypeScriptController(t *testing.T) {
	t.Parallel()
	dir := samples.TypeScript(t, "deploy/controllers/typescript")
	decides(t, "node", filepath.Join(dir, "dist", "controller.js"))
}

// controller is a program that runs.
type controller struct {
	t   *testing.T
	url string
}

// start runs a program until the test ends. It requires that SIGTERM ends it without an error.
func start(t *testing.T, args []string) controller {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.json")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	command := exec.Command(args[0], append(args[1:], path)...)
	command.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret, "LISTEN=127.0.0.1:0")
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err != nil {
		_ = command.Wait()
		require.NoError(t, err, "%s", errs.String())
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, lines)
	}()
	t.Cleanup(func() {
		require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		kill := time.AfterFunc(time.Minute, func() { _ = command.Process.Kill() })
		defer kill.Stop()
		<-drained
		require.NoError(t, command.Wait(), "%s", errs.String())
		require.Empty(t, errs.String())
	})
	_, url, found := strings.Cut(strings.TrimSpace(first), "listening on ")
	require.True(t, found, first)
	return controller{t, url}
}

// post sends a body that was signed at a time, perhaps changed afterwards.
func (c controller) post(body string, at time.Time, change func(*http.Request)) (int, string, string) {
	c.t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	require.NoError(c.t, err)
	signature, err := signer.Sign("msg-1", at, []byte(body))
	require.NoError(c.t, err)
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.url, strings.NewReader(body))
	require.NoError(c.t, err)
	request.Close = true
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(standardwebhooks.HeaderWebhookID, "msg-1")
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, fmt.Sprint(at.Unix()))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	if change != nil {
		change(request)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return response.StatusCode, response.Header.Get("Content-Type"), string(answer)
}

// decide sends a job and returns the answer as Lockstep reads it.
func (c controller) decide(job payload.Job) payload.Answer {
	c.t.Helper()
	status, contentType, body := c.post(string(payload.Encode(job)), time.Now(), nil)
	require.Equal(c.t, http.StatusOK, status, body)
	answer, err := payload.ReadAnswer(contentType, strings.NewReader(body), job.ID)
	require.NoError(c.t, err, body)
	return answer
}

func example(t *testing.T, name string) payload.Job {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(samples.Root(t), "schemas", "admission", "examples", name+".request.json"))
	require.NoError(t, err)
	job, err := payload.DecodeJob(content)
	require.NoError(t, err)
	return job
}

func decides(t *testing.T, args ...string) {
	t.Helper()
	c := start(t, args)
	const mine, others = 822993167, 822993168
	for range 2 { // a repeated request has the same answer
		require.Equal(t, payload.Answer{
			JobID: 123, Accepted: true, AddTags: []string{"us-west"}, AcceptRunners: []int64{mine},
			RejectRunners: []int64{others}, Reason: "user 98123 belongs to us-west; user 98123 may use runners 822993167",
		}, withoutEmpty(c.decide(example(t, "accepted"))))
		require.Equal(t, payload.Answer{
			JobID: 245, Accepted: true, AddTags: []string{"us-west"}, RemoveTags: []string{"eu-west"},
			AcceptRunners: []int64{mine}, RejectRunners: []int64{others},
			Reason: "user 98123 belongs to us-west; user 98123 may use runners 822993167",
		}, withoutEmpty(c.decide(example(t, "redirected"))))
		require.Equal(t, payload.Answer{JobID: 666, Reason: "project 666 is not on the list"},
			c.decide(example(t, "rejected")))
	}
	nobody := example(t, "accepted")
	nobody.Variables["GITLAB_USER_ID"] = payload.Text("6")
	require.Equal(t, payload.Answer{JobID: 123, Reason: "user 6 may use no runner"}, c.decide(nobody),
		"no accepted runner is a rejection, not all runners")

	body := string(payload.Encode(example(t, "accepted")))
	for name, refused := range map[string]struct {
		body   string
		at     time.Time
		change func(*http.Request)
		status int
	}{
		"no signature": {
			body, time.Now(), func(r *http.Request) { r.Header.Del(standardwebhooks.HeaderWebhookSignature) },
			http.StatusUnauthorized,
		},
		"changed after signing": {body, time.Now(), func(r *http.Request) {
			changed := strings.Replace(body, "98123", "98124", 1)
			r.Body = io.NopCloser(strings.NewReader(changed))
		}, http.StatusUnauthorized},
		"another id": {
			body, time.Now(), func(r *http.Request) { r.Header.Set(standardwebhooks.HeaderWebhookID, "msg-2") },
			http.StatusUnauthorized,
		},
		"replayed later": {body, time.Now().Add(-time.Hour), nil, http.StatusUnauthorized},
		"not JSON":       {"job", time.Now(), nil, http.StatusBadRequest},
		"no job":         {"[]", time.Now(), nil, http.StatusBadRequest},
		"too large":      {strings.Repeat(" ", payload.MaxBytes+1), time.Now(), nil, http.StatusRequestEntityTooLarge},
		"another method": {"", time.Now(), func(r *http.Request) { r.Method = http.MethodGet }, http.StatusMethodNotAllowed},
	} {
		status, _, answer := c.post(refused.body, refused.at, refused.change)
		require.Equal(t, refused.status, status, "%s: %s", name, answer)
	}
}

// withoutEmpty makes empty lists absent ones, which mean the same.
func withoutEmpty(a payload.Answer) payload.Answer {
	if len(a.RemoveTags) == 0 {
		a.RemoveTags = nil
	}
	return a
}

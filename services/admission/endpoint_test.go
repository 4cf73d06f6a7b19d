package admission_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/postgres"
	"lockstep.internal/tools/testkit/bodyflood"
)

const (
	callbackURL   = "Lockstep-Callback-Url"
	callbackToken = "Lockstep-Callback-Token"
	apiURL        = "Lockstep-Api-Url"
	jobToken      = "Lockstep-Job-Token"
)

// call sends a request with a token and returns the status and the body of the response.
func call(t *testing.T, method, url, token, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// callBack answers a request later and returns the status.
func callBack(t *testing.T, r received, token, answer string) int {
	t.Helper()
	status, _ := call(t, http.MethodPost, r.header.Get(callbackURL), token,
		strings.ReplaceAll(answer, "JOB", strconv.Itoa(r.job)))
	return status
}

// later starts a controller that answers later, and returns its request about job 9001.
func (f *fixture) later() received {
	f.t.Helper()
	s := newWebServer(f.t, func(w http.ResponseWriter, _ received) { w.WriteHeader(http.StatusAccepted) })
	f.asked = s
	f.create(project, projectID, s.settings("later"))
	f.prepare(prepared(9001, "docker"))
	require.Eventually(f.t, func() bool { return len(s.received()) == 1 }, soon, 10*time.Millisecond)
	return s.received()[0]
}

func TestCallbackAnswersOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	r := f.later()
	token := r.header.Get(callbackToken)
	require.Equal(t, http.StatusUnauthorized, callBack(t, r, "lsac_"+strings.Repeat("A", 43), accept))
	require.Equal(t, http.StatusUnauthorized, callBack(t, r, r.header.Get(jobToken), accept))
	other := r
	other.header = r.header.Clone()
	other.header.Set(callbackURL, strings.Replace(r.header.Get(callbackURL), "/9001/", "/9002/", 1))
	require.Equal(t, http.StatusUnauthorized, callBack(t, other, token, accept))
	require.Equal(t, http.StatusUnprocessableEntity, callBack(t, r, token, `[{"id": JOB}]`))
	require.Equal(t, http.StatusUnprocessableEntity, callBack(t, r, token, `[{"id": 1, "admission": "accepted"}]`))
	require.Equal(t, http.StatusNoContent, callBack(t, r, token,
		`[{"id": JOB, "admission": "accepted", "tags": {"additions": ["linux"]}, "reason": "checked"}]`))
	d := f.decided(9001)
	require.Equal(t, events.AdmissionOutcomeAdmitted, d.Outcome)
	require.Equal(t, []string{"docker", "linux"}, d.Tags)
	require.Equal(t, http.StatusConflict, callBack(t, r, token, accept))
}

// A controller may call back before it responds: the record of its request keeps what the callback has stored.
func TestResponseDoesNotReplaceTheResultOfACallback(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	r := f.later()
	require.Equal(t, http.StatusNoContent, callBack(t, r, r.header.Get(callbackToken), accept))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)

	database, err := pgxpool.ParseConfig(f.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	database.ConnConfig.RuntimeParams["search_path"] = "admission"
	pool, err := pgxpool.NewWithConfig(t.Context(), database)
	require.NoError(t, err)
	defer pool.Close()
	var id int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT id FROM attempts WHERE job_id = 9001`).Scan(&id))
	late := postgres.Ended{AttemptID: id, Result: "the controller answers later", At: time.Now()}
	require.NoError(t, libpostgres.InTx(t.Context(), pool, func(tx pgx.Tx) error { return late.Store(t.Context(), tx) }))
	var result string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT result FROM attempts WHERE id = $1`, id).Scan(&result))
	require.Equal(t, "accepted by a callback", result)
}

func TestOfManyCallbacksOneWins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	r := f.later()
	var wg sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 8 {
		wg.Go(func() {
			status := callBack(t, r, r.header.Get(callbackToken), accept)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	wg.Wait()
	require.Equal(t, 1, statuses[http.StatusNoContent], "%v", statuses)
	require.Equal(t, 7, statuses[http.StatusConflict]+statuses[http.StatusGone], "%v", statuses)
}

// The three scenarios of controllers query project, user, memberships and runners.
func TestReadTokenIsForOneJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.runner(events.RunnerChanged{
		RunnerID: 40, Revision: 1, Type: events.RunnerTypeProjectType, ProjectIds: []int{otherProject},
		OrganizationID: organizationID,
	})
	f.runner(events.RunnerChanged{
		RunnerID: 41, Revision: 1, Type: events.RunnerTypeGroupType, GroupID: outerGroup, OrganizationID: organizationID,
		UserIds: []int{reader},
	})
	f.start()
	r := f.later()
	read := func(name, token string) (int, string) {
		return call(t, http.MethodGet, r.header.Get(apiURL)+"/"+name, token, "")
	}
	for name, want := range map[string]string{
		"job": `{"id": 9001, "pipeline_id": 801, "project_id": 4, "user_id": 8, "name": "test", "stage": "test",
			"protected": false, "attempt": 1, "tags": ["docker"]}`,
		"project":     `{"id": 4, "path": "acme/shop/web", "organization_id": 1, "group_ids": [3, 2]}`,
		"user":        `{"id": 8, "login": "ada", "administrator": false, "blocked": false}`,
		"memberships": `[{"scope": "project", "scope_id": 4, "role": "reader"}]`,
	} {
		status, body := read(name, r.header.Get(jobToken))
		require.Equal(t, http.StatusOK, status, body)
		require.JSONEq(t, want, body)
	}
	status, body := read("runners", r.header.Get(jobToken))
	require.Equal(t, http.StatusOK, status)
	var runners []struct {
		ID      string `json:"id"`
		UserIDs []int  `json:"user_ids"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &runners))
	require.Len(t, runners, 3)
	require.Equal(t, "41", runners[2].ID)
	require.Equal(t, []int{reader}, runners[2].UserIDs)

	for _, wrong := range []string{"", "lsaj_x", "lsaj_" + strings.Repeat("A", 43), r.header.Get(callbackToken)} {
		status, _ := read("job", wrong)
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.Equal(t, http.StatusNoContent, callBack(t, r, r.header.Get(callbackToken), accept))
	f.decided(9001)
	status, _ = read("job", r.header.Get(jobToken))
	require.Equal(t, http.StatusUnauthorized, status, "the token is good until the round ends")
}

// Tokens of a request are of no use for another job, controller or attempt.
func TestTokensAreForOneJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	first := f.later()
	f.prepare(prepared(9002, "docker"))
	var second received
	require.Eventually(t, func() bool {
		all := f.asked.received()
		second = all[len(all)-1]
		return second.job == 9002
	}, soon, 10*time.Millisecond)
	for job, r := range map[string]received{"9001": first, "9002": second} {
		status, body := call(t, http.MethodGet, r.header.Get(apiURL)+"/job?job="+job, r.header.Get(jobToken), "")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, `"id":`+strconv.Itoa(r.job))
	}
	status, body := call(t, http.MethodGet, first.header.Get(apiURL)+"/job?job=9002", first.header.Get(jobToken), "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"id":9001`, "the token says which job is read")

	require.Equal(t, http.StatusUnauthorized, callBack(t, first, second.header.Get(callbackToken), accept))
	require.Equal(t, http.StatusUnauthorized, callBack(t, first, second.header.Get(jobToken), accept))
	whole := first.header.Get(callbackURL)
	url := whole[:strings.LastIndex(whole, "/9001/")]
	for _, other := range []string{
		"/9001/999/1", "/9001/1/2", "/0/0/0", "/-9001/1/1", "/9001/1/x", "/99999999999999999999/1/1",
	} {
		status, _ := call(t, http.MethodPost, url+other, first.header.Get(callbackToken), accept)
		require.Equal(t, http.StatusUnauthorized, status, other)
	}
	for _, r := range []received{first, second} {
		require.Equal(t, http.StatusNoContent, callBack(t, r, r.header.Get(callbackToken), accept))
		require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(r.job).Outcome)
	}
}

// Bodies that are too large or never end change nothing, and do not use up the token.
func TestBadBodiesOfCallbacksChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cfg.API.BodyTimeout = time.Second
	f.start()
	r := f.later()
	token := r.header.Get(callbackToken)
	large := `[{"id": JOB, "admission": "accepted", "reason": "` + strings.Repeat("x", 2<<20) + `"}]`
	status := callBack(t, r, token, large)
	require.GreaterOrEqual(t, status, 400)
	require.Less(t, status, 500)

	body, write := io.Pipe()
	defer write.Close()
	go func() { _, _ = io.WriteString(write, `[{"id": 9001, "admission": "accepted"`) }()
	// Without the address in front, which would wait for the body by itself.
	_, path, found := strings.Cut(r.header.Get(callbackURL), "/admission/")
	require.True(t, found)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.api+"/admission/"+path, body)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err == nil {
		require.GreaterOrEqual(t, response.StatusCode, 400)
		require.NoError(t, response.Body.Close())
	}
	require.Equal(t, http.StatusNoContent, callBack(t, r, token, accept))
	require.Equal(t, events.AdmissionOutcomeAdmitted, f.decided(9001).Outcome)
}

// No other test runs meanwhile: the heap is measured.
func TestMemoryIsBoundedBeforeAuthentication(t *testing.T) {
	f := newFixture(t)
	f.start()
	r := f.later()
	_, path, found := strings.Cut(r.header.Get(callbackURL), "/admission/")
	require.True(t, found)
	bodyflood.RequireRefused(t, f.api+"/admission/"+path, func() {
		require.Equal(t, http.StatusNoContent, callBack(t, r, r.header.Get(callbackToken), accept))
	})
}

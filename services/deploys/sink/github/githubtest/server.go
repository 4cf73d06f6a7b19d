// Package githubtest is a GitHub for tests: the part of its REST API that the sinks use, with its
// limits and refusals.
package githubtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep.internal/services/deploys/sink/sinktest"
)

// Token is the one that is accepted.
const Token = "ghp_a-token-of-the-test"

// Server is a GitHub with its repositories.
type Server struct {
	*httptest.Server

	// Faults happen before the API is reached.
	Faults sinktest.Faults
	// Limit enforces the secondary limits of writes.
	Limit sinktest.RateLimiter

	mu     sync.Mutex
	repos  map[string]*Repository
	nextID int64
	calls  []string
}

// Repository is one, with what was written to it.
type Repository struct {
	Commits     []string // full
	Pulls       map[int]*Pull
	Statuses    []Status
	Deployments []*Deployment
}

// Pull is a pull request.
type Pull struct {
	Head, State string
	Comments    []*Comment
}

// Comment is one on a pull request.
type Comment struct {
	ID   int64  `json:"id"`
	Body string `json:"body"`
}

// Status is one of a commit.
type Status struct {
	SHA         string `json:"-"`
	State       string `json:"state"`
	Context     string `json:"context"`
	Description string `json:"description"`
	TargetURL   string `json:"target_url"`
}

// Deployment is one with its states, the newest last.
type Deployment struct {
	ID          int64              `json:"id"`
	SHA         string             `json:"sha"`
	Ref         string             `json:"ref"`
	Task        string             `json:"task"`
	Environment string             `json:"environment"`
	Payload     json.RawMessage    `json:"payload"`
	States      []DeploymentStatus `json:"-"`
}

// DeploymentStatus is a state of a deployment.
type DeploymentStatus struct {
	State          string `json:"state"`
	Description    string `json:"description"`
	LogURL         string `json:"log_url"`
	EnvironmentURL string `json:"environment_url"`
}

// Start starts a GitHub that ends with the test. Its limits are GitHub's.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{repos: map[string]*Repository{}, Limit: sinktest.RateLimiter{
		Windows: []sinktest.Window{{Count: 80, Length: time.Minute}, {Count: 500, Length: time.Hour}}, Penalty: time.Minute,
	}}
	mux := http.NewServeMux()
	const repo = "/repos/{owner}/{repo}"
	mux.HandleFunc("POST "+repo+"/statuses/{sha}", s.repo(s.createStatus))
	mux.HandleFunc("GET "+repo+"/commits/{ref}", s.repo(s.commit))
	mux.HandleFunc("GET "+repo+"/commits/{ref}/pulls", s.repo(s.pullsOf))
	mux.HandleFunc("GET "+repo+"/deployments", s.repo(s.deployments))
	mux.HandleFunc("POST "+repo+"/deployments", s.repo(s.createDeployment))
	mux.HandleFunc("POST "+repo+"/deployments/{id}/statuses", s.repo(s.createDeploymentStatus))
	mux.HandleFunc("GET "+repo+"/issues/{number}/comments", s.repo(s.comments))
	mux.HandleFunc("POST "+repo+"/issues/{number}/comments", s.repo(s.createComment))
	mux.HandleFunc("PATCH "+repo+"/issues/comments/{id}", s.repo(s.editComment))
	s.Server = httptest.NewServer(s.Faults.Wrap(mux))
	tb.Cleanup(s.Close)
	return s
}

// Settle waits for what is being written, so that repositories may be looked at, or changed.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// Repo gives the repository owner/name, made where there is none. Look at it after Settle, while
// nothing writes.
func (s *Server) Repo(name string) *Repository {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repos[name] == nil {
		s.repos[name] = &Repository{Pulls: map[int]*Pull{}}
	}
	return s.repos[name]
}

// Calls are the requests served, such as "POST /repos/o/r/deployments".
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

type handler func(repo *Repository, r *http.Request) (int, any)

// repo does what all endpoints have in common, one request at a time.
func (s *Server) repo(handle handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if r.Header.Get("Authorization") != "Bearer "+Token {
			answer(w, http.StatusUnauthorized, message("Bad credentials"))
			return
		}
		if r.Method != http.MethodGet {
			if wait, ok := s.Limit.Allow(); !ok {
				w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds()+0.999)))
				answer(w, http.StatusForbidden, SecondaryLimit())
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, r.Method+" "+r.URL.Path)
		repo := s.repos[r.PathValue("owner")+"/"+r.PathValue("repo")]
		if repo == nil {
			answer(w, http.StatusNotFound, message("Not Found"))
			return
		}
		code, body := handle(repo, r)
		if p, ok := body.(page); ok {
			p.write(w, r)
			return
		}
		if text, ok := body.(string); ok {
			w.Header().Set("Content-Type", "application/vnd.github.sha; charset=utf-8")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(text))
			return
		}
		answer(w, code, body)
	}
}

// SecondaryLimit is the body of the refusal of that name.
func SecondaryLimit() map[string]any {
	return map[string]any{
		"message":           "You have exceeded a secondary rate limit and have been temporarily blocked from content creation. Please retry your request again later.",
		"documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits",
	}
}

func message(text string) map[string]any {
	return map[string]any{"message": text, "documentation_url": "https://docs.github.com/rest"}
}

func invalid(text string) (int, any) {
	return http.StatusUnprocessableEntity, map[string]any{
		"message": "Validation Failed", "errors": []map[string]any{{"resource": "Status", "code": "custom", "message": text}},
		"documentation_url": "https://docs.github.com/rest",
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a client that is gone
}

// page is a list that is served by pages.
type page []any

func (p page) write(w http.ResponseWriter, r *http.Request) {
	size, number := 30, 1
	if n, err := strconv.Atoi(r.URL.Query().Get("per_page")); err == nil && n > 0 {
		size = min(n, 100)
	}
	if n, err := strconv.Atoi(r.URL.Query().Get("page")); err == nil && n > 0 {
		number = n
	}
	from, to := min((number-1)*size, len(p)), min(number*size, len(p))
	if to < len(p) {
		next := *r.URL
		query := next.Query()
		query.Set("page", strconv.Itoa(number+1))
		next.RawQuery = query.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s>; rel="next"`, r.Host, next.String()))
	}
	answer(w, http.StatusOK, append([]any{}, p[from:to]...))
}

func (s *Server) createStatus(repo *Repository, r *http.Request) (int, any) {
	status := Status{SHA: r.PathValue("sha")}
	if err := json.NewDecoder(r.Body).Decode(&status); err != nil {
		return http.StatusBadRequest, message("Problems parsing JSON")
	}
	if !slices.Contains(repo.Commits, status.SHA) {
		return invalid("No commit found for SHA: " + status.SHA)
	}
	if !slices.Contains([]string{"error", "failure", "pending", "success"}, status.State) {
		return invalid("State is not included in the list")
	}
	if len([]rune(status.Description)) > 140 {
		return invalid("Description is too long (maximum is 140 characters)")
	}
	if len([]rune(status.Context)) > 255 {
		return invalid("Context is too long (maximum is 255 characters)")
	}
	if t := status.TargetURL; t != "" && !strings.HasPrefix(t, "http://") && !strings.HasPrefix(t, "https://") {
		return invalid("Target url must use http(s) scheme")
	}
	count := 0
	for _, have := range repo.Statuses {
		if have.SHA == status.SHA && have.Context == status.Context {
			count++
		}
	}
	if count >= 1000 {
		return invalid("This SHA and context has reached the maximum number of statuses.")
	}
	repo.Statuses = append(repo.Statuses, status)
	return http.StatusCreated, status
}

func (s *Server) commit(repo *Repository, r *http.Request) (int, any) {
	for _, sha := range repo.Commits {
		if strings.HasPrefix(sha, r.PathValue("ref")) {
			return http.StatusOK, sha
		}
	}
	return http.StatusUnprocessableEntity, message("No commit found for SHA: " + r.PathValue("ref"))
}

func (s *Server) pullsOf(repo *Repository, r *http.Request) (int, any) {
	list := page{}
	for number, pull := range repo.Pulls {
		if pull.Head == r.PathValue("ref") {
			list = append(list, map[string]any{"number": number, "state": pull.State})
		}
	}
	return http.StatusOK, list
}

func (s *Server) deployments(repo *Repository, r *http.Request) (int, any) {
	query, list := r.URL.Query(), page{}
	wants := func(key, have string) bool { want := query.Get(key); return want == "" || want == have }
	for _, d := range slices.Backward(repo.Deployments) {
		if wants("sha", d.SHA) && wants("task", d.Task) && wants("environment", d.Environment) {
			list = append(list, d)
		}
	}
	return http.StatusOK, list
}

func (s *Server) createDeployment(repo *Repository, r *http.Request) (int, any) {
	var request struct {
		Ref              string          `json:"ref"`
		Task             string          `json:"task"`
		AutoMerge        *bool           `json:"auto_merge"`
		RequiredContexts *[]string       `json:"required_contexts"`
		Payload          json.RawMessage `json:"payload"`
		Environment      string          `json:"environment"`
		Description      string          `json:"description"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return http.StatusBadRequest, message("Problems parsing JSON")
	}
	if !slices.Contains(repo.Commits, request.Ref) {
		return http.StatusUnprocessableEntity, message("No ref found for: " + request.Ref)
	}
	if request.AutoMerge == nil || *request.AutoMerge {
		return http.StatusAccepted, message("Auto-merged main into " + request.Ref + " on deployment.")
	}
	if request.RequiredContexts == nil {
		return http.StatusConflict, message("Conflict: Commit status checks failed for " + request.Ref)
	}
	if len([]rune(request.Description)) > 140 {
		return invalid("Description is too long (maximum is 140 characters)")
	}
	s.nextID++
	d := &Deployment{ID: s.nextID, SHA: request.Ref, Ref: request.Ref, Task: request.Task, Environment: request.Environment, Payload: request.Payload}
	repo.Deployments = append(repo.Deployments, d)
	return http.StatusCreated, d
}

func (s *Server) createDeploymentStatus(repo *Repository, r *http.Request) (int, any) {
	var status DeploymentStatus
	if err := json.NewDecoder(r.Body).Decode(&status); err != nil {
		return http.StatusBadRequest, message("Problems parsing JSON")
	}
	if !slices.Contains([]string{"error", "failure", "inactive", "in_progress", "queued", "pending", "success"}, status.State) {
		return invalid("State is not included in the list")
	}
	for _, d := range repo.Deployments {
		if strconv.FormatInt(d.ID, 10) == r.PathValue("id") {
			d.States = append(d.States, status)
			return http.StatusCreated, status
		}
	}
	return http.StatusNotFound, message("Not Found")
}

func (s *Server) comments(repo *Repository, r *http.Request) (int, any) {
	pull := repo.pull(r)
	if pull == nil {
		return http.StatusNotFound, message("Not Found")
	}
	list := page{}
	for _, c := range pull.Comments {
		list = append(list, c)
	}
	return http.StatusOK, list
}

func (repo *Repository) pull(r *http.Request) *Pull {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil {
		return nil
	}
	return repo.Pulls[number]
}

func (s *Server) createComment(repo *Repository, r *http.Request) (int, any) {
	pull := repo.pull(r)
	if pull == nil {
		return http.StatusNotFound, message("Not Found")
	}
	s.nextID++
	c := &Comment{ID: s.nextID}
	if code, refusal := readComment(r, c); refusal != nil {
		return code, refusal
	}
	pull.Comments = append(pull.Comments, c)
	return http.StatusCreated, c
}

func (s *Server) editComment(repo *Repository, r *http.Request) (int, any) {
	for _, pull := range repo.Pulls {
		for _, c := range pull.Comments {
			if strconv.FormatInt(c.ID, 10) == r.PathValue("id") {
				if code, refusal := readComment(r, c); refusal != nil {
					return code, refusal
				}
				return http.StatusOK, c
			}
		}
	}
	return http.StatusNotFound, message("Not Found")
}

func readComment(r *http.Request, c *Comment) (int, any) {
	var request struct {
		Body string `json:"body"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return http.StatusBadRequest, message("Problems parsing JSON")
	}
	if request.Body == "" || len([]rune(request.Body)) > 65536 {
		code, body := invalid("Body is too long (maximum is 65536 characters)")
		return code, body
	}
	c.Body = request.Body
	return 0, nil
}

// Package githubtest contains a fake GitHub server for tests: the part of the REST API that the sinks use, with
// GitHub's limits and errors.
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

// Token is the only accepted token.
const Token = "ghp_a-token-of-the-test"

// Server is a fake GitHub server with repositories.
type Server struct {
	*httptest.Server

	// Faults are applied before the request reaches the API.
	Faults sinktest.Faults
	// Limit enforces the secondary limits of writes.
	Limit sinktest.RateLimiter

	mu     sync.Mutex
	repos  map[string]*Repository
	nextID int64
	calls  []string
}

// Repository is a repository and everything that was written to it.
type Repository struct {
	Commits     []string // full ids
	Pulls       map[int]*Pull
	Statuses    []Status
	Deployments []*Deployment
}

// Pull is a pull request.
type Pull struct {
	Head, State string
	Comments    []*Comment
}

// Comment is a comment on a pull request.
type Comment struct {
	ID   int64  `json:"id"`
	Body string `json:"body"`
}

// Status is a commit status.
type Status struct {
	SHA         string `json:"-"`
	State       string `json:"state"`
	Context     string `json:"context"`
	Description string `json:"description"`
	TargetURL   string `json:"target_url"`
}

// Deployment is a deployment with its statuses, oldest first.
type Deployment struct {
	ID          int64              `json:"id"`
	SHA         string             `json:"sha"`
	Ref         string             `json:"ref"`
	Task        string             `json:"task"`
	Environment string             `json:"environment"`
	Payload     json.RawMessage    `json:"payload"`
	States      []DeploymentStatus `json:"-"`
}

// DeploymentStatus is a status of a deployment.
type DeploymentStatus struct {
	State          string `json:"state"`
	Description    string `json:"description"`
	LogURL         string `json:"log_url"`
	EnvironmentURL string `json:"environment_url"`
}

// Start starts a server with the rate limits of GitHub. It stops at the end of the test.
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

// Settle waits until no request is being served. After it, the test may read or change repositories.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// OpenPull adds an open pull request to a repository. It may be called while requests are served.
func (s *Server) OpenPull(repository string, number int) *Pull {
	repo := s.Repo(repository)
	s.mu.Lock()
	defer s.mu.Unlock()
	pull := &Pull{State: "open"}
	repo.Pulls[number] = pull
	return pull
}

// Repo returns the repository owner/name, and creates it if needed. Read it after Settle, while no requests are sent.
func (s *Server) Repo(name string) *Repository {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repos[name] == nil {
		s.repos[name] = &Repository{Pulls: map[int]*Pull{}}
	}
	return s.repos[name]
}

// Comments returns the bodies of the comments on a pull request.
func (s *Server) Comments(p *Pull) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	bodies := make([]string, 0, len(p.Comments))
	for _, c := range p.Comments {
		bodies = append(bodies, c.Body)
	}
	return bodies
}

// Calls returns the served requests, such as "POST /repos/o/r/deployments".
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

type handler func(repo *Repository, r *http.Request) (int, any)

// repo returns an HTTP handler for requests about a repository. It authenticates, applies the rate limit and serves one
// request at a time.
func (s *Server) repo(handle handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if r.Header.Get("Authorization") != "Bearer "+Token {
			respond(w, http.StatusUnauthorized, message("Bad credentials"))
			return
		}
		if r.Method != http.MethodGet {
			if wait, ok := s.Limit.Allow(); !ok {
				w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds()+0.999)))
				respond(w, http.StatusForbidden, SecondaryLimit())
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, r.Method+" "+r.URL.Path)
		repo := s.repos[r.PathValue("owner")+"/"+r.PathValue("repo")]
		if repo == nil {
			respond(w, http.StatusNotFound, message("Not Found"))
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
		respond(w, code, body)
	}
}

// SecondaryLimit returns the body of GitHub's response with a secondary rate limit.
func SecondaryLimit() map[string]any {
	return map[string]any{
		"message": "You have exceeded a secondary rate limit and have been temporarily blocked from content creation. " +
			"Please retry your request again later.",
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

func respond(w http.ResponseWriter, code int, body any) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // the client has disconnected
}

// page is a list that is served page by page.
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
	respond(w, http.StatusOK, append([]any{}, p[from:to]...))
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
	for _, existing := range repo.Statuses {
		if existing.SHA == status.SHA && existing.Context == status.Context {
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
	matches := func(key, value string) bool { want := query.Get(key); return want == "" || want == value }
	for _, d := range slices.Backward(repo.Deployments) {
		if matches("sha", d.SHA) && matches("task", d.Task) && matches("environment", d.Environment) {
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
	d := &Deployment{
		ID:          s.nextID,
		SHA:         request.Ref,
		Ref:         request.Ref,
		Task:        request.Task,
		Environment: request.Environment,
		Payload:     request.Payload,
	}
	repo.Deployments = append(repo.Deployments, d)
	return http.StatusCreated, d
}

func (s *Server) createDeploymentStatus(repo *Repository, r *http.Request) (int, any) {
	var status DeploymentStatus
	if err := json.NewDecoder(r.Body).Decode(&status); err != nil {
		return http.StatusBadRequest, message("Problems parsing JSON")
	}
	if !slices.Contains([]string{
		"error", "failure", "inactive", "in_progress", "queued", "pending", "success",
	}, status.State) {
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
	if code, problem := readComment(r, c); problem != nil {
		return code, problem
	}
	pull.Comments = append(pull.Comments, c)
	return http.StatusCreated, c
}

func (s *Server) editComment(repo *Repository, r *http.Request) (int, any) {
	for _, pull := range repo.Pulls {
		for _, c := range pull.Comments {
			if strconv.FormatInt(c.ID, 10) == r.PathValue("id") {
				if code, problem := readComment(r, c); problem != nil {
					return code, problem
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

package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/page"
	"lockstep.internal/services/gateway/session"
)

const (
	// flowLifetime is how long a person may take at the provider.
	flowLifetime = 10 * time.Minute
	// ticketLifetime is how long a browser may take from one host to another.
	ticketLifetime = time.Minute
	// PathSession is the path on hosts of workspaces that exchanges a ticket.
	PathSession = "/.lockstep/session"

	pathAuthorize = "/authorize"
	pathCallback  = "/callback"
	pathSignOut   = "/sign-out"
	pathWellKnown = "/.well-known/lockstep"
	// maxPath is the longest path, with its query, that a person returns to.
	maxPath = 2000
)

// Config of signing in.
type Config struct {
	Zone address.Zone
	// Provider is optional: without it, people sign in by a link that the command line asks for.
	Provider Provider
	// Lifetime of a session.
	Lifetime time.Duration
	// TokenLifetime is that of tokens for the command line.
	TokenLifetime time.Duration
	// WellKnown is what the command line finds at the sign-in host.
	WellKnown WellKnown
}

// Users are people.
type Users interface {
	// ByLogin returns the id of a person who may sign in. The error is shown to the person.
	ByLogin(ctx context.Context, login string) (id int64, err error)
	// Check returns why the person of a session may do nothing any more: it is blocked, or the access token was revoked.
	Check(s session.Session) error
	// Changed returns a channel that is closed when the result of Check may have changed.
	Changed() <-chan struct{}
}

// Revocations are ids of sessions that have ended before their time, shared by all replicas.
type Revocations interface {
	Revoke(ctx context.Context, id string, until time.Time) error
	Revoked(id string) bool
	// Use is that of [session.Revocations].
	Use(id string) (revoked context.Context, release func())
}

// Codes are one-time codes.
type Codes interface {
	// Use returns an error if a code was used before, at any replica.
	Use(ctx context.Context, code string, lifetime time.Duration) error
}

// Tokens are access tokens of Lockstep.
type Tokens interface {
	// Create makes a personal access token on behalf of a person. The error is a fault.
	Create(ctx context.Context, userID int64, name string, expiresAt time.Time) (value string, err error)
	// Verify returns a session of the person whose access token it is, which ends with the token. The error is a fault.
	Verify(token string) (session.Session, error)
}

// Workspaces are found.
type Workspaces interface {
	// Watch is access.Table.Watch.
	Watch(userID int64, name string, port int) (access.Entry, <-chan struct{}, error)
}

// Dependencies of signing in. All are required.
type Dependencies struct {
	Keys        session.Keys
	Users       Users
	Revocations Revocations
	Codes       Codes
	Tokens      Tokens
	HostKeys    HostKeys
	Workspaces  Workspaces
	// Client is for requests to the provider.
	Client *http.Client
	Logger *slog.Logger
	Now    func() time.Time
}

// SignIn signs people in.
type SignIn struct {
	Config

	users       Users
	revocations Revocations
	codes       Codes
	tokens      Tokens
	hostKeys    HostKeys
	workspaces  Workspaces
	client      *http.Client
	logger      *slog.Logger
	now         func() time.Time
	mux         http.Handler

	keys     atomic.Pointer[session.Keys]
	provider atomic.Pointer[discovered] // nil until Discover has succeeded
}

// New returns the handler. People can sign in at the provider once [SignIn.Discover] has succeeded.
func New(c Config, d Dependencies) *SignIn {
	s := &SignIn{
		Config: c, users: d.Users, revocations: d.Revocations, codes: d.Codes, tokens: d.Tokens,
		hostKeys: d.HostKeys, workspaces: d.Workspaces, client: d.Client, logger: d.Logger, now: d.Now,
	}
	s.SetKeys(d.Keys)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathAuthorize, s.authorize)
	mux.HandleFunc("GET "+pathCallback, s.callback)
	mux.HandleFunc("POST "+pathSignOut, s.signOut)
	mux.HandleFunc("GET /{$}", s.home)
	mux.HandleFunc("GET "+pathWellKnown, s.wellKnown)
	mux.HandleFunc("GET "+pathCLI, s.askForCommandLine)
	mux.HandleFunc("POST "+pathCLI, s.allowCommandLine)
	mux.HandleFunc("POST "+pathCLIToken, s.exchangeCode)
	mux.HandleFunc("POST "+pathCLISession, s.createLink)
	mux.HandleFunc("POST "+pathCLIHostKey, s.resetHostKey)
	mux.HandleFunc("GET "+pathCLIOpen, s.showLink)
	mux.HandleFunc("POST "+pathCLIOpen, s.followLink)
	// A form of a workspace's page must not sign people in or out.
	s.mux = http.NewCrossOriginProtection().Handler(mux)
	return s
}

// SetKeys replaces the keys.
func (s *SignIn) SetKeys(keys session.Keys) { s.keys.Store(&keys) }

func (s *SignIn) seal(purpose string, value any) (string, error) {
	return s.keys.Load().Seal(purpose, value)
}

func (s *SignIn) open(purpose, text string, value any) error {
	return s.keys.Load().Open(purpose, text, value)
}

// ServeHTTP serves the sign-in host.
func (s *SignIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	s.allowForms(w, "")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.mux.ServeHTTP(w, r)
}

// allowForms sets the policy of a page. Its form may lead to one more origin.
func (s *SignIn) allowForms(w http.ResponseWriter, origin string) {
	w.Header().Set("Content-Security-Policy", page.Policy(origin))
}

// Session returns the session of a request to a host, or false.
func (s *SignIn) Session(host string, r *http.Request) (session.Session, bool) {
	var found session.Session
	text := readCookie(r, sessionCookie)
	if text == "" || s.open(purposeSession+host, text, &found) != nil {
		return session.Session{}, false
	}
	return found, s.isValid(found)
}

func (s *SignIn) isValid(current session.Session) bool {
	return current.Valid(s.now()) && !s.revocations.Revoked(current.ID) && s.users.Check(current) == nil
}

// Reasons why a session has ended.
var (
	ErrSignedOut = errors.New("you have signed out")
	ErrExpired   = errors.New("the session has expired: sign in again")
)

// EndedError is why a session has ended.
type EndedError struct{ Reason error }

func (e EndedError) Error() string { return e.Reason.Error() }

func (e EndedError) Unwrap() error { return e.Reason }

// While returns a context that ends with the session, too. Its cause is an [EndedError] then. Call release at the end
// of its use.
func (s *SignIn) While(ctx context.Context, current session.Session) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	end := func(reason error) { cancel(EndedError{reason}) }
	revoked, unused := s.revocations.Use(current.ID)
	keep := context.AfterFunc(revoked, func() { end(ErrSignedOut) })
	expiry := time.AfterFunc(current.ExpiresAt.Sub(s.now()), func() { end(ErrExpired) })
	// Access to workspaces ends by itself when a person is blocked. Only tokens must be watched.
	watching := make(chan struct{})
	if current.TokenID == 0 {
		close(watching)
	} else {
		go func() {
			defer close(watching)
			s.watchToken(ctx, current, end)
		}()
	}
	return ctx, func() {
		cancel(nil)
		keep()
		expiry.Stop()
		unused()
		<-watching
	}
}

// watchToken calls end when the token of a session is no longer valid. It returns then, and when ctx ends.
func (s *SignIn) watchToken(ctx context.Context, current session.Session, end func(reason error)) {
	for {
		changed := s.users.Changed()
		if err := s.users.Check(current); err != nil {
			end(err)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Purposes of sealed values; the host follows.
const (
	purposeSession = "session of "
	purposeReturn  = "return to "
	purposeTicket  = "ticket for "
	purposeFlow    = "flow"
	purposeCode    = "code of the command line"
	purposeLink    = "link of the command line"
)

// returning is what the browser keeps while it signs in for a workspace.
type returning struct {
	Number    string    `json:"number"`
	Path      string    `json:"path"`
	ExpiresAt time.Time `json:"expires_at"`
}

// ticket lets a browser have a session cookie on a host.
type ticket struct {
	Session    session.Session `json:"session"`
	NumberHash string          `json:"number_hash"`
	ExpiresAt  time.Time       `json:"expires_at"`
}

// flow is what the browser keeps while it is at the provider.
type flow struct {
	State      string `json:"state"`
	Nonce      string `json:"nonce"`
	Verifier   string `json:"verifier"`
	Host       string `json:"host,omitempty"`
	NumberHash string `json:"number_hash,omitempty"`
	// CommandLine is the query of the page about the command line that the person returns to.
	CommandLine string    `json:"command_line,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
}

// Begin sends a browser to sign in, and to come back to the path of the request. Only a navigation can follow; other
// requests get 401.
func (s *SignIn) Begin(w http.ResponseWriter, r *http.Request, target address.Target) {
	mode := r.Header.Get("Sec-Fetch-Mode")
	if (r.Method != http.MethodGet && r.Method != http.MethodHead) || (mode != "" && mode != "navigate") ||
		r.Header.Get("Upgrade") != "" {
		http.Error(w, "sign in: open this address in a browser", http.StatusUnauthorized)
		return
	}
	host := s.Zone.Host(target)
	back := returning{Number: rand.Text(), Path: r.URL.RequestURI(), ExpiresAt: s.now().Add(flowLifetime)}
	if len(back.Path) > maxPath {
		back.Path = "/"
	}
	sealed, err := s.seal(purposeReturn+host, back)
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	setCookie(w, returnCookie, sealed, flowLifetime)
	s.redirect(w, r, s.Zone.SignIn(), pathAuthorize, url.Values{"host": {host}, "number": {hash(back.Number)}})
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (s *SignIn) redirect(w http.ResponseWriter, r *http.Request, host, path string, query url.Values) {
	u := url.URL{Scheme: "https", Host: host, Path: path, RawQuery: query.Encode()}
	http.Redirect(w, r, u.String(), http.StatusSeeOther)
}

// authorize gives a browser with a session a ticket for a workspace, and sends others to the provider.
func (s *SignIn) authorize(w http.ResponseWriter, r *http.Request) {
	host, number := r.URL.Query().Get("host"), r.URL.Query().Get("number")
	target, ok := s.Zone.Parse(host)
	if host != "" && (!ok || s.Zone.Host(target) != host || number == "" || len(number) > maxPath) {
		s.fail(w, r, http.StatusBadRequest, "sign in: this link is not complete", errors.New("no such host"))
		return
	}
	current, ok := s.Session(s.Zone.SignIn(), r)
	switch {
	case !ok:
		s.toProvider(w, r, flow{Host: host, NumberHash: number})
	case host == "":
		s.redirect(w, r, s.Zone.SignIn(), "/", nil)
	default:
		sealed, err := s.seal(purposeTicket+host,
			ticket{Session: current, NumberHash: number, ExpiresAt: s.now().Add(ticketLifetime)})
		if err != nil {
			s.fail(w, r, http.StatusInternalServerError, "sign in", err)
			return
		}
		s.redirect(w, r, host, PathSession, url.Values{"ticket": {sealed}})
	}
}

// flowName is the name of the cookie of a flow. The state comes from the request: it is cut and checked.
func flowName(state string) string {
	const length = 8
	if len(state) < length || strings.ContainsFunc(state[:length], func(c rune) bool {
		return (c < 'A' || c > 'Z') && (c < '2' || c > '7') // the alphabet of rand.Text
	}) {
		return flowCookie
	}
	return flowCookie + state[:length]
}

// callback ends the flow: the provider has sent the browser back.
func (s *SignIn) callback(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name := flowName(query.Get("state"))
	var f flow
	if s.open(purposeFlow, readCookie(r, name), &f) != nil || s.now().After(f.ExpiresAt) ||
		subtle.ConstantTimeCompare([]byte(f.State), []byte(query.Get("state"))) != 1 {
		s.fail(w, r, http.StatusBadRequest, "sign in: this took too long, or began in another browser; try again",
			errors.New("the state is not that of this browser"))
		return
	}
	setCookie(w, name, "", -time.Second)
	if refusal := query.Get("error"); refusal != "" {
		s.fail(w, r, http.StatusForbidden, "sign in: the provider refused: "+refusal+" "+query.Get("error_description"),
			errors.New("the provider refused"))
		return
	}
	login, err := s.login(r.Context(), query.Get("code"), f)
	if err != nil {
		s.fail(w, r, http.StatusBadGateway, "sign in: the provider's answer is not valid; try again", err)
		return
	}
	id, err := s.users.ByLogin(r.Context(), login)
	if err != nil {
		s.fail(w, r, http.StatusForbidden, "sign in: "+err.Error(), err)
		return
	}
	sealed, err := s.seal(purposeSession+s.Zone.SignIn(),
		session.Session{ID: rand.Text(), UserID: id, Login: login, ExpiresAt: s.now().Add(s.Lifetime)})
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	setCookie(w, sessionCookie, sealed, s.Lifetime)
	switch {
	case f.CommandLine != "":
		query, err = url.ParseQuery(f.CommandLine)
		if err != nil {
			s.fail(w, r, http.StatusBadRequest, "sign in: this link is not complete", err)
			return
		}
		s.redirect(w, r, s.Zone.SignIn(), pathCLI, query)
	case f.Host != "":
		s.redirect(w, r, s.Zone.SignIn(), pathAuthorize, url.Values{"host": {f.Host}, "number": {f.NumberHash}})
	default:
		s.redirect(w, r, s.Zone.SignIn(), "/", nil)
	}
}

// Accept exchanges a ticket for the session cookie of a workspace's host, and returns to where the person wanted to go.
func (s *SignIn) Accept(w http.ResponseWriter, r *http.Request, target address.Target) {
	host := s.Zone.Host(target)
	var back returning
	var t ticket
	if s.open(purposeReturn+host, readCookie(r, returnCookie), &back) != nil ||
		s.open(purposeTicket+host, r.URL.Query().Get("ticket"), &t) != nil ||
		s.now().After(back.ExpiresAt) || s.now().After(t.ExpiresAt) ||
		subtle.ConstantTimeCompare([]byte(hash(back.Number)), []byte(t.NumberHash)) != 1 ||
		!s.isValid(t.Session) {
		s.fail(w, r, http.StatusBadRequest, "sign in: this took too long, or began in another browser; try again",
			errors.New("the ticket is not that of this browser"))
		return
	}
	sealed, err := s.seal(purposeSession+host, t.Session)
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	setCookie(w, sessionCookie, sealed, t.Session.ExpiresAt.Sub(s.now()))
	setCookie(w, returnCookie, "", -time.Second)
	// An absolute URL: a path such as //evil.org is another host to a browser.
	http.Redirect(w, r, "https://"+host+ensureSlash(back.Path), http.StatusSeeOther) //nolint:gosec // host is of the zone
}

func ensureSlash(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return "/"
}

// signOut ends the session on all hosts.
func (s *SignIn) signOut(w http.ResponseWriter, r *http.Request) {
	if current, ok := s.Session(s.Zone.SignIn(), r); ok {
		if err := s.revocations.Revoke(r.Context(), current.ID, current.ExpiresAt); err != nil {
			s.fail(w, r, http.StatusServiceUnavailable, "sign out: try again", err)
			return
		}
	}
	setCookie(w, sessionCookie, "", -time.Second)
	s.page(w, r, http.StatusOK, page.Page{
		Title: "Signed out", Text: "Open the address of a workspace to sign in again.",
	})
}

func (s *SignIn) home(w http.ResponseWriter, r *http.Request) {
	current, ok := s.Session(s.Zone.SignIn(), r)
	if !ok {
		s.redirect(w, r, s.Zone.SignIn(), pathAuthorize, nil)
		return
	}
	s.page(w, r, http.StatusOK, page.Page{
		Title: "Signed in as " + current.Login, Text: "Signing out ends what you have open in workspaces, in all windows.",
		Action: pathSignOut, Button: "Sign out",
	})
}

// fail shows a text to the person, and logs the cause.
func (s *SignIn) fail(w http.ResponseWriter, r *http.Request, status int, text string, cause error) {
	s.logger.WarnContext(r.Context(), "a person could not sign in", logkey.Error(cause))
	s.page(w, r, status, page.Page{Title: "This did not work", Text: text})
}

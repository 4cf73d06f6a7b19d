package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/address"
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
	// maxPath is the longest path, with its query, that a person returns to.
	maxPath = 2000
)

// Config of signing in. All fields are required but Scopes.
type Config struct {
	Zone address.Zone
	// Issuer is the URL of the provider; its discovery document is below it.
	Issuer       string
	ClientID     string
	ClientSecret string
	// Scopes besides openid. Defaults to profile and email.
	Scopes []string
	// LoginClaim is the claim with the login of the person in Lockstep, such as preferred_username: of the ID token, or
	// else of the provider's userinfo. The provider must not let people choose it.
	LoginClaim string
	// Lifetime of a session.
	Lifetime time.Duration
}

// Users finds people.
type Users interface {
	// ByLogin returns the id of a person who may sign in. The error is shown to the person.
	ByLogin(ctx context.Context, login string) (id int64, err error)
}

// Revocations are ids of sessions that have ended before their time, shared by all replicas.
type Revocations interface {
	Revoke(ctx context.Context, id string, until time.Time) error
	Revoked(id string) bool
}

// SignIn signs people in.
type SignIn struct {
	Config

	keys        session.Keys
	users       Users
	revocations Revocations
	oauth       oauth2.Config
	provider    *oidc.Provider
	verifier    *oidc.IDTokenVerifier
	client      *http.Client
	logger      *slog.Logger
	now         func() time.Time
	mux         http.Handler
}

// New reads the discovery document of the provider with the client, which later requests use, too.
func New(
	ctx context.Context, c Config, keys session.Keys, users Users, revocations Revocations, client *http.Client,
	logger *slog.Logger,
) (*SignIn, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, client), c.Issuer)
	if err != nil {
		return nil, fmt.Errorf("sign-in: the OpenID Connect provider %s: %w", c.Issuer, err)
	}
	if len(c.Scopes) == 0 {
		c.Scopes = []string{"profile", "email"}
	}
	s := &SignIn{
		Config: c, keys: keys, users: users, revocations: revocations, client: client, logger: logger, now: time.Now,
		provider: provider,
		verifier: provider.Verifier(&oidc.Config{ClientID: c.ClientID}),
		oauth: oauth2.Config{
			ClientID: c.ClientID, ClientSecret: c.ClientSecret, Endpoint: provider.Endpoint(),
			RedirectURL: "https://" + c.Zone.SignIn() + pathCallback,
			Scopes:      append([]string{oidc.ScopeOpenID}, c.Scopes...),
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathAuthorize, s.authorize)
	mux.HandleFunc("GET "+pathCallback, s.callback)
	mux.HandleFunc("POST "+pathSignOut, s.signOut)
	mux.HandleFunc("GET /{$}", s.home)
	// A form of a workspace's page must not sign people out.
	s.mux = http.NewCrossOriginProtection().Handler(mux)
	return s, nil
}

// ServeHTTP serves the sign-in host.
func (s *SignIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; form-action 'self'")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.mux.ServeHTTP(w, r)
}

// Session returns the session of a request to a host, or false.
func (s *SignIn) Session(host string, r *http.Request) (session.Session, bool) {
	var found session.Session
	text := readCookie(r, sessionCookie)
	if text == "" || s.keys.Open(purposeSession+host, text, &found) != nil {
		return session.Session{}, false
	}
	return found, found.Valid(s.now()) && !s.revocations.Revoked(found.ID)
}

// Purposes of sealed values; the host follows.
const (
	purposeSession = "session of "
	purposeReturn  = "return to "
	purposeTicket  = "ticket for "
	purposeFlow    = "flow"
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
	State      string    `json:"state"`
	Nonce      string    `json:"nonce"`
	Verifier   string    `json:"verifier"`
	Host       string    `json:"host,omitempty"`
	NumberHash string    `json:"number_hash,omitempty"`
	ExpiresAt  time.Time `json:"expires_at"`
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
	sealed, err := s.keys.Seal(purposeReturn+host, back)
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
		s.toProvider(w, r, host, number)
	case host == "":
		s.redirect(w, r, s.Zone.SignIn(), "/", nil)
	default:
		sealed, err := s.keys.Seal(purposeTicket+host,
			ticket{Session: current, NumberHash: number, ExpiresAt: s.now().Add(ticketLifetime)})
		if err != nil {
			s.fail(w, r, http.StatusInternalServerError, "sign in", err)
			return
		}
		s.redirect(w, r, host, PathSession, url.Values{"ticket": {sealed}})
	}
}

func (s *SignIn) toProvider(w http.ResponseWriter, r *http.Request, host, number string) {
	f := flow{
		State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Host: host, NumberHash: number,
		ExpiresAt: s.now().Add(flowLifetime),
	}
	sealed, err := s.keys.Seal(purposeFlow, f)
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	setCookie(w, flowName(f.State), sealed, flowLifetime)
	http.Redirect(w, r, s.oauth.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)),
		http.StatusSeeOther)
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
	if s.keys.Open(purposeFlow, readCookie(r, name), &f) != nil || s.now().After(f.ExpiresAt) ||
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
	sealed, err := s.keys.Seal(purposeSession+s.Zone.SignIn(),
		session.Session{ID: rand.Text(), UserID: id, Login: login, ExpiresAt: s.now().Add(s.Lifetime)})
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	setCookie(w, sessionCookie, sealed, s.Lifetime)
	query = url.Values{}
	if f.Host != "" {
		query = url.Values{"host": {f.Host}, "number": {f.NumberHash}}
	}
	s.redirect(w, r, s.Zone.SignIn(), pathAuthorize, query)
}

// login exchanges the code for an ID token and returns the login in it.
func (s *SignIn) login(ctx context.Context, code string, f flow) (string, error) {
	ctx = oidc.ClientContext(ctx, s.client)
	token, err := s.oauth.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return "", fmt.Errorf("exchange the code: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return "", errors.New("the provider returned no ID token")
	}
	verified, err := s.verifier.Verify(ctx, raw)
	if err != nil {
		return "", fmt.Errorf("verify the ID token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(f.Nonce)) != 1 {
		return "", errors.New("the ID token has another nonce")
	}
	claims := map[string]any{}
	if err := verified.Claims(&claims); err != nil {
		return "", fmt.Errorf("read the ID token: %w", err)
	}
	if _, ok := claims[s.LoginClaim]; !ok {
		if err := s.userInfo(ctx, token, verified.Subject, &claims); err != nil {
			return "", err
		}
	}
	login, ok := claims[s.LoginClaim].(string)
	if !ok || login == "" {
		return "", fmt.Errorf("the provider has no claim %s about this person", s.LoginClaim)
	}
	return login, nil
}

// userInfo reads more claims: providers need not put those of scopes into the ID token (OpenID Connect Core, section
// 5.4).
func (s *SignIn) userInfo(ctx context.Context, token *oauth2.Token, subject string, claims *map[string]any) error {
	info, err := s.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("read the userinfo: %w", err)
	}
	if info.Subject != subject {
		return errors.New("the userinfo is about another person than the ID token")
	}
	if err := info.Claims(claims); err != nil {
		return fmt.Errorf("read the userinfo: %w", err)
	}
	return nil
}

// Accept exchanges a ticket for the session cookie of a workspace's host, and returns to where the person wanted to go.
func (s *SignIn) Accept(w http.ResponseWriter, r *http.Request, target address.Target) {
	host := s.Zone.Host(target)
	var back returning
	var t ticket
	if s.keys.Open(purposeReturn+host, readCookie(r, returnCookie), &back) != nil ||
		s.keys.Open(purposeTicket+host, r.URL.Query().Get("ticket"), &t) != nil ||
		s.now().After(back.ExpiresAt) || s.now().After(t.ExpiresAt) ||
		subtle.ConstantTimeCompare([]byte(hash(back.Number)), []byte(t.NumberHash)) != 1 ||
		s.revocations.Revoked(t.Session.ID) {
		s.fail(w, r, http.StatusBadRequest, "sign in: this took too long, or began in another browser; try again",
			errors.New("the ticket is not that of this browser"))
		return
	}
	sealed, err := s.keys.Seal(purposeSession+host, t.Session)
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
	s.page(w, r, http.StatusOK, view{Title: "Signed out"})
}

func (s *SignIn) home(w http.ResponseWriter, r *http.Request) {
	current, ok := s.Session(s.Zone.SignIn(), r)
	if !ok {
		s.redirect(w, r, s.Zone.SignIn(), pathAuthorize, nil)
		return
	}
	s.page(w, r, http.StatusOK, view{Title: "Signed in as " + current.Login, SignOut: true})
}

// fail shows a text to the person, and logs the cause.
func (s *SignIn) fail(w http.ResponseWriter, r *http.Request, status int, text string, cause error) {
	s.logger.WarnContext(r.Context(), "a person could not sign in", logkey.Error(cause))
	s.page(w, r, status, view{Title: text})
}

package signin

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/page"
	"lockstep.internal/services/gateway/session"
)

const (
	pathCLISession = "/cli/session"
	pathCLIOpen    = "/cli/open"
)

// link lets a browser have the session of the person who has asked for it with an access token.
type link struct {
	ID        string          `json:"id"`
	Session   session.Session `json:"session"`
	Host      string          `json:"host"`
	ExpiresAt time.Time       `json:"expires_at"`
}

// bearer returns the access token of a request; empty for none.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return token
}

// createLink returns a one-time link to a workspace for the browser of a person who has an access token.
func (s *SignIn) createLink(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Workspace string `json:"workspace"`
		// Port 0 is the terminal.
		Port int `json:"port"`
	}
	current, err := s.tokens.Verify(bearer(r))
	if err == nil {
		err = s.decode(w, r, &request)
	}
	target := address.Target{Workspace: request.Workspace, Port: request.Port}
	if request.Port == access.SSH {
		target.Port = address.TerminalPort
	}
	if _, ok := s.Zone.Parse(s.Zone.Host(target)); err == nil && !ok {
		err = fault.New(errcode.InvalidArgument, "workspace and port are not those of a host: %.100q, %d",
			request.Workspace, request.Port)
	}
	if err == nil {
		if _, _, unknown := s.workspaces.Watch(current.UserID, request.Workspace, request.Port); unknown != nil {
			err = fault.Wrap(unknown, errcode.NotFound, "workspace %.100q", request.Workspace)
		}
	}
	var sealed string
	if err == nil {
		current.ID = rand.Text()
		if end := s.now().Add(s.Lifetime); current.ExpiresAt.IsZero() || current.ExpiresAt.After(end) {
			current.ExpiresAt = end
		}
		sealed, err = s.seal(purposeLink, link{
			ID: rand.Text(), Session: current, Host: s.Zone.Host(target), ExpiresAt: s.now().Add(codeLifetime),
		})
	}
	if err != nil {
		fault.WriteHTTP(w, r, s.logger, err)
		return
	}
	to := url.URL{
		Scheme: "https", Host: s.Zone.SignIn(), Path: pathCLIOpen, RawQuery: url.Values{"code": {sealed}}.Encode(),
	}
	s.encode(w, r, struct {
		URL string `json:"url"`
	}{to.String()})
}

var errLink = errors.New("the link is not valid, was used, or is older than a minute: run lockstep ws open again")

func (s *SignIn) openLink(sealed string) (link, error) {
	var l link
	if s.open(purposeLink, sealed, &l) != nil || s.now().After(l.ExpiresAt) || !s.isValid(l.Session) {
		return link{}, errLink
	}
	return l, nil
}

// showLink asks the person: a link that somebody else has sent must not sign a browser in as that somebody.
func (s *SignIn) showLink(w http.ResponseWriter, r *http.Request) {
	sealed := r.URL.Query().Get("code")
	l, err := s.openLink(sealed)
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, err.Error(), err)
		return
	}
	s.allowForms(w, "https://"+l.Host)
	s.page(w, r, http.StatusOK, page.Page{
		Title: "Sign in as " + l.Session.Login, Text: "Continue only if you have just run lockstep ws open.",
		Action: pathCLIOpen, Button: "Sign in as " + l.Session.Login, Fields: map[string]string{"code": sealed},
	})
}

// followLink signs the browser in, and sends it to the workspace.
func (s *SignIn) followLink(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	l, err := s.openLink(r.PostFormValue("code"))
	if err == nil {
		err = s.useOnce(r, l.ID)
	}
	var sealed string
	if err == nil {
		sealed, err = s.seal(purposeSession+s.Zone.SignIn(), l.Session)
	}
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, errLink.Error(), err)
		return
	}
	setCookie(w, sessionCookie, sealed, l.Session.ExpiresAt.Sub(s.now()))
	s.allowForms(w, "https://"+l.Host)
	s.redirect(w, r, l.Host, "/", nil)
}

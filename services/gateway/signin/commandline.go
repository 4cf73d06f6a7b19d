package signin

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/gateway/page"
	"lockstep.internal/services/gateway/session"
)

const (
	pathCLI      = "/cli"
	pathCLIToken = "/cli/token"

	// codeLifetime is how long the command line may take to exchange its code.
	codeLifetime = time.Minute
	// maxBody is the largest JSON body.
	maxBody = 16 << 10
	// minPort is the first port that programs of people may listen at.
	minPort = 1024
	maxPort = 65535
)

// commandLine is the request of `lockstep login`, in the query and in the form.
type commandLine struct {
	port                   int
	challenge, state, name string
}

var (
	// challengeForm is an SHA-256 in base64url.
	challengeForm = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
	stateForm     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)
	// nameForm is a host name. It is shown to the person.
	nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func parseCommandLine(values url.Values) (commandLine, error) {
	port, err := strconv.Atoi(values.Get("port"))
	c := commandLine{port: port, challenge: values.Get("challenge"), state: values.Get("state"), name: values.Get("name")}
	switch {
	case err != nil || port < minPort || port > maxPort:
		return c, errors.New("port is not a number from 1024 to 65535")
	case !challengeForm.MatchString(c.challenge):
		return c, errors.New("challenge is not an SHA-256 in base64url")
	case !stateForm.MatchString(c.state):
		return c, errors.New("state is not 1 to 200 letters, digits, _ and -")
	case !nameForm.MatchString(c.name):
		return c, errors.New("name is not the name of a machine")
	}
	return c, nil
}

func (c commandLine) values() url.Values {
	return url.Values{
		"port": {strconv.Itoa(c.port)}, "challenge": {c.challenge}, "state": {c.state}, "name": {c.name},
	}
}

// code lets the command line that has the verifier have a token.
type code struct {
	ID        string    `json:"id"`
	UserID    int64     `json:"user_id"`
	Name      string    `json:"name"`
	Challenge string    `json:"challenge"`
	ExpiresAt time.Time `json:"expires_at"`
}

// askForCommandLine asks a person whether a machine may act for it.
func (s *SignIn) askForCommandLine(w http.ResponseWriter, r *http.Request) {
	c, err := parseCommandLine(r.URL.Query())
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, "sign in: this link is not complete: "+err.Error(), err)
		return
	}
	current, ok := s.Session(s.Zone.SignIn(), r)
	if !ok {
		s.toProvider(w, r, flow{CommandLine: c.values().Encode()})
		return
	}
	fields := map[string]string{}
	for name, values := range c.values() {
		fields[name] = values[0]
	}
	// Browsers apply form-action to the redirection, too.
	s.allowForms(w, "http://127.0.0.1:"+strconv.Itoa(c.port))
	s.page(w, r, http.StatusOK, page.Page{
		Title: "Let the command line on " + c.name + " act as " + current.Login + "?",
		Text: "It can then do everything that you may do. Continue only if you have just run lockstep login " +
			"on this machine.",
		Action: pathCLI, Button: "Continue", Fields: fields,
	})
}

// allowCommandLine sends the code to the command line, which listens on the machine of the browser.
func (s *SignIn) allowCommandLine(w http.ResponseWriter, r *http.Request) {
	c, err := s.form(w, r)
	current, ok := s.Session(s.Zone.SignIn(), r)
	if err == nil && !ok {
		err = errors.New("nobody has signed in")
	}
	if err != nil {
		s.fail(w, r, http.StatusBadRequest, "sign in: "+err.Error()+"; run lockstep login again", err)
		return
	}
	sealed, err := s.seal(purposeCode, code{
		ID: rand.Text(), UserID: current.UserID, Name: c.name, Challenge: c.challenge,
		ExpiresAt: s.now().Add(codeLifetime),
	})
	if err != nil {
		s.fail(w, r, http.StatusInternalServerError, "sign in", err)
		return
	}
	s.allowForms(w, "http://127.0.0.1:"+strconv.Itoa(c.port))
	to := url.URL{
		Scheme: "http", Host: "127.0.0.1:" + strconv.Itoa(c.port), Path: "/callback",
		RawQuery: url.Values{"code": {sealed}, "state": {c.state}}.Encode(),
	}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
}

func (s *SignIn) form(w http.ResponseWriter, r *http.Request) (commandLine, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return commandLine{}, errors.New("the form is not complete")
	}
	return parseCommandLine(r.PostForm)
}

// exchangeCode returns a personal access token for a code.
func (s *SignIn) exchangeCode(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Code     string `json:"code"`
		Verifier string `json:"verifier"`
	}
	var granted code
	err := s.decode(w, r, &request)
	if err == nil && (s.open(purposeCode, request.Code, &granted) != nil || s.now().After(granted.ExpiresAt) ||
		subtle.ConstantTimeCompare([]byte(hash(request.Verifier)), []byte(granted.Challenge)) != 1) {
		err = fault.New(errcode.Unauthenticated, "the code is not valid, or older than a minute: run lockstep login again")
	}
	if err == nil {
		err = s.useOnce(r, granted.ID)
	}
	if err == nil {
		err = s.users.Check(session.Session{UserID: granted.UserID})
	}
	expires := s.now().Add(s.TokenLifetime).Truncate(time.Second).UTC()
	var value string
	if err == nil {
		value, err = s.tokens.Create(r.Context(), granted.UserID, "command line on "+granted.Name, expires)
	}
	if err != nil {
		fault.WriteHTTP(w, r, s.logger, err)
		return
	}
	s.encode(w, r, struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}{value, expires})
}

// useOnce refuses a code or link that was used before.
func (s *SignIn) useOnce(r *http.Request, id string) error {
	if err := s.codes.Use(r.Context(), id, codeLifetime); err != nil {
		return fault.Wrap(err, errcode.Unauthenticated, "the code or link cannot be used: request a new one")
	}
	return nil
}

func (s *SignIn) decode(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := decoder.Decode(into); err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "the body is not the JSON object of this request")
	}
	return nil
}

func (s *SignIn) encode(w http.ResponseWriter, r *http.Request, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		s.logger.DebugContext(r.Context(), "send an answer", logkey.Error(err))
	}
}

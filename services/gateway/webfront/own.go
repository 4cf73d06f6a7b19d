package webfront

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/session"
)

// keepAlive is the time between two lines of a stream on which nothing happens: proxies close silent connections.
const keepAlive = 20 * time.Second

// serveOwn serves the gateway's paths.
func (f *Front) serveOwn(w http.ResponseWriter, r *http.Request, target address.Target, current session.Session) {
	switch {
	case r.URL.Path == pathStart && r.Method == http.MethodPost:
		f.start(w, r, target, current)
	case r.URL.Path == pathState && r.Method == http.MethodGet:
		f.streamState(w, r, target, current)
	case target.Port == address.TerminalPort && r.Method == http.MethodGet:
		f.serveTerminal(w, r, target, current)
	case r.URL.Path == pathTerminal && r.Method == http.MethodGet:
		// Pages of the workspace's programs must not reach its terminal: it has a host of its own.
		target.Port = address.TerminalPort
		f.redirectToTerminal(w, r, target)
	default:
		http.NotFound(w, r)
	}
}

// start starts the workspace: what the button does. Only a page of the workspace's own host can send this, see package
// origin.
func (f *Front) start(w http.ResponseWriter, r *http.Request, target address.Target, current session.Session) {
	e, _, err := f.Workspaces.Watch(current.UserID, target.Workspace, portOf(target))
	if err == nil {
		err = f.Workspaces.Start(r.Context(), current.UserID, e.ID)
	}
	if err != nil {
		status := http.StatusServiceUnavailable
		if errors.Is(err, access.ErrUnknown) {
			status = http.StatusNotFound
		}
		f.page(w, r, status, view{Title: target.Workspace + " was not started", Text: err.Error()})
		return
	}
	http.Redirect(w, r, "https://"+f.Zone.Host(target)+"/", http.StatusSeeOther) //nolint:gosec // a host of the zone
}

// streamState sends the state and each change of it, as server-sent events.
func (f *Front) streamState(w http.ResponseWriter, r *http.Request, target address.Target, current session.Session) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for {
		e, changed, err := f.Workspaces.Watch(current.UserID, target.Workspace, portOf(target))
		if err != nil {
			return
		}
		data, err := json.Marshal(struct {
			State   string `json:"state"`
			Running bool   `json:"running"`
		}{e.State, e.Running})
		if err != nil {
			return // two plain values always encode
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || stream.Flush() != nil {
			return // the client has left
		}
		for waiting := true; waiting; {
			select {
			case <-changed:
				waiting = false
			case <-ticker.C:
				if _, err := fmt.Fprint(w, ":\n\n"); err != nil || stream.Flush() != nil {
					return
				}
			case <-service.Draining(r.Context()):
				return
			case <-r.Context().Done():
				return
			}
		}
	}
}

// view is what a page shows.
type view struct {
	Title string
	Text  string
	State string // of a workspace that does not run; its changes are followed
	Start bool   // the person may start it
	Nonce string // of the script
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<h1>{{.Title}}</h1>
{{with .Text}}<p>{{.}}</p>{{end}}
{{if .State}}<p>This workspace is <strong id="state">{{.State}}</strong>.</p>
{{if .Start}}<form method="post" action="/.lockstep/start"><button>Start</button></form>{{end}}
<script nonce="{{.Nonce}}">
new EventSource("/.lockstep/state").onmessage = event => {
  const {state, running} = JSON.parse(event.data)
  document.getElementById("state").textContent = state
  if (running) location.reload()
}
</script>{{end}}
</html>
`))

func (f *Front) page(w http.ResponseWriter, r *http.Request, status int, v view) {
	v.Nonce = rand.Text()
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; form-action 'self'; "+
		"frame-ancestors 'none'; script-src 'nonce-"+v.Nonce+"'")
	w.WriteHeader(status)
	if err := page.Execute(w, v); err != nil {
		f.Logger.DebugContext(r.Context(), "send a page", logkey.Error(err))
	}
}

package webfront

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/page"
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
		f.page(w, r, status, page.Page{
			Title: target.Workspace + " was not started", Text: err.Error(), Login: current.Login,
		})
		return
	}
	http.Redirect(w, r, "https://"+f.Zone.Host(target)+"/", http.StatusSeeOther) //nolint:gosec // a host of the zone
}

// streamState sends the state and each change of it, as server-sent events. The last one, ended, is that the person may
// no longer see it. A stream that ends without it is to be opened again.
func (f *Front) streamState(w http.ResponseWriter, r *http.Request, target address.Target, current session.Session) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for {
		e, changed, err := f.Workspaces.Watch(current.UserID, target.Workspace, portOf(target))
		if err != nil {
			sendEnded(w, stream)
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
				sendEnded(w, stream) // the session has ended, or the client has left
				return
			}
		}
	}
}

// sendEnded sends the last event of a stream. The client may have left.
func sendEnded(w io.Writer, stream *http.ResponseController) {
	if _, err := fmt.Fprint(w, "event: ended\ndata: {}\n\n"); err == nil {
		_ = stream.Flush()
	}
}

// notRunning is the page of a workspace that does not run. Its owner can start it.
func (f *Front) notRunning(w http.ResponseWriter, r *http.Request, e access.Entry, current session.Session) {
	p := page.Page{Title: e.Name, State: e.State, Login: current.Login}
	if current.UserID == e.OwnerID {
		p.Action, p.Button = pathStart, "Start"
	} else {
		p.Text = "Its owner can start it."
	}
	f.page(w, r, http.StatusServiceUnavailable, p)
}

// unknown is the page of a workspace that the person may not enter.
func (f *Front) unknown(w http.ResponseWriter, r *http.Request, current session.Session) {
	f.page(w, r, http.StatusNotFound, page.Page{
		Title: "There is no such workspace, or you may not enter it",
		Text:  "If it is the workspace of another person, ask its owner to share it with you.",
		Login: current.Login,
	})
}

func (f *Front) page(w http.ResponseWriter, r *http.Request, status int, p page.Page) {
	p.SignIn = "https://" + f.Zone.SignIn() + "/"
	w.Header().Set("Content-Security-Policy", page.Policy(""))
	if err := page.Write(w, status, p); err != nil {
		f.Logger.DebugContext(r.Context(), "send a page", logkey.Error(err))
	}
}

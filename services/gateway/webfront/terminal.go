package webfront

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
	"lockstep.internal/services/gateway/address"
	"lockstep.internal/services/gateway/session"
	"lockstep.internal/services/gateway/sshfront"
)

const (
	pathTerminal       = pathOwn + "terminal"
	pathTerminalFiles  = pathTerminal + "/"
	pathTerminalSocket = pathTerminal + "/socket"

	// terminalMessage is the largest message of a terminal page: what a person pastes.
	terminalMessage = 1 << 20
	// terminalBuffer is read from the shell at once.
	terminalBuffer = 32 << 10
	// terminalPing keeps proxies from closing a silent connection, and finds browsers that are gone.
	terminalPing = 30 * time.Second
	// terminalWrite bounds a write to the browser.
	terminalWrite = 30 * time.Second
	// terminalReason is how long the reason may take to arrive why a shell did not end by itself: the agent of a
	// workspace that stops can end before the gateway learns that it stops.
	terminalReason = 3 * time.Second
	// terminalClose is the time that a browser has to read why its terminal ends.
	terminalClose = 2 * time.Second

	terminalType = "xterm-256color"
	// maxTerminalSize is the largest number of columns and rows.
	maxTerminalSize = 1000
	startColumns    = 80
	startRows       = 24
	maxReason       = 120 // bytes of the reason of a WebSocket's end
)

// terminalFiles are the page of the terminal and xterm.js; see terminal/README.md.
//
//go:embed terminal/terminal.html terminal/terminal.js terminal/terminal.css terminal/xterm
var terminalFiles embed.FS

// portOf is the port of a target in package access: the host of the terminal needs the right to everything.
func portOf(target address.Target) int {
	if target.Port == address.TerminalPort {
		return access.SSH
	}
	return target.Port
}

func (f *Front) redirectToTerminal(w http.ResponseWriter, r *http.Request, target address.Target) {
	http.Redirect(w, r, "https://"+f.Zone.Host(target)+pathTerminal, http.StatusSeeOther) //nolint:gosec // of the zone
}

// serveTerminal serves the page of the terminal, its files and its WebSocket, at a host of its own.
func (f *Front) serveTerminal(w http.ResponseWriter, r *http.Request, target address.Target, current session.Session) {
	grant, err := f.Workspaces.Enter(current.UserID, target.Workspace, access.SSH)
	switch {
	case errors.Is(err, access.ErrNotRunning):
		f.notRunning(w, r, grant.Entry, current)
		return
	case err != nil:
		f.unknown(w, r, current)
		return
	}
	defer grant.Close()
	ctx, release := whileGranted(r.Context(), grant)
	defer release()
	switch r.URL.Path {
	case pathTerminal:
		f.serveTerminalFile(w, r, "terminal.html")
	case pathTerminalSocket:
		ctx, stop := whileServing(ctx)
		defer stop()
		f.serveTerminalSocket(w, r.WithContext(ctx), grant, current)
	case pathTerminalFiles + "terminal.js", pathTerminalFiles + "terminal.css", pathTerminalFiles + "xterm.js",
		pathTerminalFiles + "xterm.css", pathTerminalFiles + "addon-fit.js":
		f.serveTerminalFile(w, r, path.Base(r.URL.Path))
	default:
		http.NotFound(w, r)
	}
}

// serveTerminalFile serves an embedded file. xterm.js sets styles from its script; scripts come from files only.
func (f *Front) serveTerminalFile(w http.ResponseWriter, r *http.Request, name string) {
	file := path.Join("terminal", name)
	if _, err := terminalFiles.Open(file); err != nil {
		file = path.Join("terminal", "xterm", name)
	}
	header := w.Header()
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "+
		"connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	http.ServeFileFS(w, r, terminalFiles, file)
}

// serveTerminalSocket joins a WebSocket with a shell. Binary messages are bytes of the terminal. Text messages of the
// page are a JSON object with the size of the terminal.
func (f *Front) serveTerminalSocket(
	w http.ResponseWriter, r *http.Request, grant *access.Grant, current session.Session,
) {
	if r.Header.Get("Origin") != "https://"+r.Host {
		http.Error(w, "open the terminal from its own page", http.StatusForbidden)
		return
	}
	// The library compares the origin with the host again.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		f.Logger.DebugContext(r.Context(), "open the WebSocket of a terminal", logkey.Error(err))
		return
	}
	defer conn.CloseNow() //nolint:errcheck // it may be closed
	conn.SetReadLimit(terminalMessage)
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	err = f.runTerminal(ctx, end, conn, grant.Entry, sshfront.Person{ID: current.UserID, Login: current.Login})
	if err != nil {
		f.Logger.InfoContext(ctx, "a terminal ended", logkey.Error(err))
	}
}

// closeTerminal tells the page why the terminal ends. The browser may have left.
func closeTerminal(conn *websocket.Conn, reason error) {
	if reason == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "the shell has ended")
		return
	}
	_ = conn.Close(websocket.StatusPolicyViolation, truncate(reason.Error(), maxReason))
}

func truncate(text string, length int) string {
	if len(text) > length {
		return text[:length]
	}
	return text
}

// errLeft is why a terminal ends whose browser has left.
var errLeft = errors.New("the browser has left")

// runTerminal returns when the shell has ended, the browser has left, or ctx ends: then the cause is the reason.
func (f *Front) runTerminal(
	ctx context.Context, end context.CancelCauseFunc, conn *websocket.Conn, workspace access.Entry,
	person sshfront.Person,
) error {
	shell, err := f.openShell(ctx, workspace, person)
	if err != nil {
		closeTerminal(conn, err)
		return err
	}
	defer shell.client.Close() //nolint:errcheck // the agent may have left
	// The end of a context would close the connection without a reason.
	open := context.WithoutCancel(ctx)
	stop := context.AfterFunc(ctx, func() {
		_ = shell.client.Close()                                      // ends the output
		time.AfterFunc(terminalClose, func() { _ = conn.CloseNow() }) // of a browser that reads nothing
	})
	defer stop()
	counted := f.Activity.Open(workspace.ID, person.ID)
	defer counted.Close()
	received := make(chan struct{})
	go func() {
		defer close(received)
		end(receiveInput(open, conn, shell, counted))
	}()
	sendOutput(open, conn, shell.output, counted)
	reason := shell.endReason(ctx)
	closeTerminal(conn, reason)
	<-received
	return reason
}

// shell is a shell with a terminal.
type shell struct {
	client  *ssh.Client
	session *ssh.Session
	input   io.Writer
	output  io.Reader
}

func (f *Front) openShell(ctx context.Context, workspace access.Entry, person sshfront.Person) (shell, error) {
	agent, err := f.Workspaces.Connect(ctx, workspace, person)
	if err != nil {
		f.Logger.WarnContext(ctx, "a workspace did not answer", logkey.Error(err))
		return shell{}, fmt.Errorf("the workspace %s does not answer: try again in a moment", workspace.Name)
	}
	s := shell{client: ssh.NewClient(agent.Conn, agent.Channels, agent.Requests)}
	if err := s.start(); err != nil {
		_ = s.client.Close()
		return shell{}, err
	}
	return s, nil
}

func (s *shell) start() error {
	var err error
	if s.session, err = s.client.NewSession(); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	if s.input, err = s.session.StdinPipe(); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	if s.output, err = s.session.StdoutPipe(); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	if err := s.session.RequestPty(terminalType, startRows, startColumns, ssh.TerminalModes{}); err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	if err := s.session.Shell(); err != nil {
		return fmt.Errorf("start a shell: %w", err)
	}
	return nil
}

var errLost = errors.New("the workspace has ended the connection")

// endReason returns why a shell without output has ended; nil if it has ended by itself.
func (s *shell) endReason(ctx context.Context) error {
	err := s.session.Wait()
	var exit *ssh.ExitError
	if context.Cause(ctx) == nil && (err == nil || errors.As(err, &exit) && exit.Signal() == "") {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // our own
	case <-time.After(terminalReason):
		return errLost
	}
}

// receiveInput passes on what the page sends, and returns why it ends.
func receiveInput(ctx context.Context, conn *websocket.Conn, to shell, counted *activity.Session) error {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return errLeft
		}
		if kind == websocket.MessageText {
			var size struct {
				Columns int `json:"columns"`
				Rows    int `json:"rows"`
			}
			if err := json.Unmarshal(data, &size); err != nil || !isSize(size.Columns) || !isSize(size.Rows) {
				return errors.New("the page sent a size that is none")
			}
			if err := to.session.WindowChange(size.Rows, size.Columns); err != nil {
				return errLeft
			}
			continue
		}
		counted.Input(len(data))
		if _, err := to.input.Write(data); err != nil {
			return errLeft
		}
	}
}

func isSize(number int) bool { return number > 0 && number <= maxTerminalSize }

// sendOutput sends what the shell writes, until it has ended or the browser has left.
func sendOutput(ctx context.Context, conn *websocket.Conn, output io.Reader, counted *activity.Session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go ping(ctx, conn)
	buffer := make([]byte, terminalBuffer)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			counted.Sent(n)
			if sent := send(ctx, conn, buffer[:n]); sent != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func send(ctx context.Context, conn *websocket.Conn, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, terminalWrite)
	defer cancel()
	return conn.Write(ctx, websocket.MessageBinary, data) //nolint:wrapcheck // the caller ends
}

// ping closes a connection whose browser is gone.
func ping(ctx context.Context, conn *websocket.Conn) {
	ticker := time.NewTicker(terminalPing)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		answered, cancel := context.WithTimeout(ctx, terminalPing)
		err := conn.Ping(answered)
		cancel()
		if err != nil {
			_ = conn.CloseNow() // it ends both directions
			return
		}
	}
}

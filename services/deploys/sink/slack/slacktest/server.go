// Package slacktest contains a fake Slack server for tests: one workspace with one channel, and Slack's rate limits and
// errors.
package slacktest

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

// Token is the only accepted token. Channel is the only channel.
const (
	Token   = "xoxb-a-token-of-the-test"
	Channel = "C0123456789"
)

// Message is a message in the channel.
type Message struct {
	TS       string          `json:"ts"`
	Text     string          `json:"text"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Edits    int             `json:"-"`
}

// Server is a fake Slack server.
type Server struct {
	*httptest.Server

	// Faults are applied before the request reaches the API.
	Faults sinktest.Faults
	// Limit enforces the rate limit of messages to the channel.
	Limit sinktest.RateLimiter

	mu       sync.Mutex
	messages []*Message
	errors   map[string]string
	calls    map[string]int
	clock    int64
}

// Start starts a server with the rate limit of Slack. It stops at the end of the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := newServer()
	s.Start()
	tb.Cleanup(s.Close)
	return s
}

// StartOn starts a server that listens on the network. It stops at the end of the test.
func StartOn(tb testing.TB, network *sinktest.Network) *Server {
	tb.Helper()
	s := newServer()
	_ = s.Listener.Close()
	s.Listener = network
	s.Start()
	tb.Cleanup(s.Close)
	return s
}

func newServer() *Server {
	s := &Server{
		errors: map[string]string{}, calls: map[string]int{},
		Limit: sinktest.RateLimiter{Windows: []sinktest.Window{{Count: 1, Length: time.Second}}, Penalty: time.Second},
	}
	mux := http.NewServeMux()
	for name, method := range map[string]func(*http.Request) any{
		"chat.postMessage": s.post, "chat.update": s.update, "conversations.history": s.history,
	} {
		mux.HandleFunc("POST /api/"+name, s.method(name, method))
	}
	s.Server = httptest.NewUnstartedServer(s.Faults.Wrap(mux))
	return s
}

// APIURL returns the base URL of the API.
func (s *Server) APIURL() string { return s.URL + "/api" }

// SetError makes a method return an error. An empty code removes the error.
func (s *Server) SetError(method, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors[method] = code
}

// Messages returns the messages of the channel, oldest first.
func (s *Server) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Message, 0, len(s.messages))
	for _, m := range s.messages {
		list = append(list, *m)
	}
	return list
}

// Delete deletes all messages.
func (s *Server) Delete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = nil
}

// AddMessages adds n messages of other users to the channel.
func (s *Server) AddMessages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.messages = append(s.messages, &Message{TS: s.ts(), Text: "another message"})
	}
}

// Calls returns how often the method was called.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func errorBody(text string) map[string]any { return map[string]any{"ok": false, "error": text} }

func (s *Server) method(name string, serve func(*http.Request) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if err := r.ParseForm(); err != nil {
			respond(w, errorBody("invalid_form_data"))
			return
		}
		if name != "conversations.history" {
			if wait, ok := s.Limit.Allow(); !ok {
				w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds()+0.999)))
				w.WriteHeader(http.StatusTooManyRequests)
				respond(w, errorBody("ratelimited"))
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[name]++
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token == "" {
			token = r.Form.Get("token")
		}
		switch {
		case token != Token:
			respond(w, errorBody("invalid_auth"))
		case s.errors[name] != "":
			respond(w, errorBody(s.errors[name]))
		case r.Form.Get("channel") != Channel:
			respond(w, errorBody("channel_not_found"))
		default:
			respond(w, serve(r))
		}
	}
}

func respond(w http.ResponseWriter, body any) {
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // the client has disconnected
}

// ts returns the timestamp of a new message. Timestamps are unique and increasing.
func (s *Server) ts() string {
	s.clock++
	return fmt.Sprintf("%d.%06d", time.Now().Unix(), s.clock)
}

func (s *Server) read(r *http.Request, m *Message) any {
	text := r.Form.Get("text")
	switch {
	case text == "":
		return errorBody("no_text")
	case len([]rune(text)) > 40000:
		return errorBody("msg_too_long")
	}
	m.Text = text
	if metadata := r.Form.Get("metadata"); metadata != "" {
		if !json.Valid([]byte(metadata)) {
			return errorBody("invalid_metadata_format")
		}
		m.Metadata = json.RawMessage(metadata)
	}
	return nil
}

func (s *Server) post(r *http.Request) any {
	m := &Message{TS: s.ts()}
	if problem := s.read(r, m); problem != nil {
		return problem
	}
	s.messages = append(s.messages, m)
	return map[string]any{"ok": true, "channel": Channel, "ts": m.TS, "message": m}
}

func (s *Server) update(r *http.Request) any {
	for _, m := range s.messages {
		if m.TS == r.Form.Get("ts") {
			if problem := s.read(r, m); problem != nil {
				return problem
			}
			m.Edits++
			return map[string]any{"ok": true, "channel": Channel, "ts": m.TS, "text": m.Text}
		}
	}
	return errorBody("message_not_found")
}

func (s *Server) history(r *http.Request) any {
	limit := 100
	if n, err := strconv.Atoi(r.Form.Get("limit")); err == nil && n > 0 {
		limit = min(n, 999)
	}
	from := 0
	if cursor := r.Form.Get("cursor"); cursor != "" {
		n, err := strconv.Atoi(cursor)
		if err != nil {
			return errorBody("invalid_cursor")
		}
		from = n
	}
	var list []*Message
	for _, m := range slices.Backward(s.messages) {
		if oldest := r.Form.Get("oldest"); oldest == "" || m.TS >= oldest {
			shown := *m
			if r.Form.Get("include_all_metadata") != "1" {
				shown.Metadata = nil
			}
			list = append(list, &shown)
		}
	}
	from = min(from, len(list))
	to := min(from+limit, len(list))
	body := map[string]any{"ok": true, "messages": append([]*Message{}, list[from:to]...), "has_more": to < len(list)}
	if to < len(list) {
		body["response_metadata"] = map[string]any{"next_cursor": strconv.Itoa(to)}
	}
	return body
}

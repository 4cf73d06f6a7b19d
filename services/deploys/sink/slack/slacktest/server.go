// Package slacktest is a Slack for tests: one workspace with channels, its limits and its refusals.
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

// Token is the one that is accepted, and Channel the one there is.
const (
	Token   = "xoxb-a-token-of-the-test"
	Channel = "C0123456789"
)

// Message is one in the channel.
type Message struct {
	TS       string          `json:"ts"`
	Text     string          `json:"text"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Edits    int             `json:"-"`
}

// Server is a Slack.
type Server struct {
	*httptest.Server

	// Faults happen before the API is reached.
	Faults sinktest.Faults
	// Limit enforces the limit of messages to the channel.
	Limit sinktest.RateLimiter

	mu       sync.Mutex
	messages []*Message
	refuse   map[string]string
	calls    map[string]int
	clock    int64
}

// Start starts a Slack that ends with the test. Its limit is Slack's, with the bursts that Slack
// allows.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{
		refuse: map[string]string{}, calls: map[string]int{},
		Limit: sinktest.RateLimiter{Windows: []sinktest.Window{{Count: 1, Length: time.Second}}, Penalty: time.Second},
	}
	mux := http.NewServeMux()
	for name, method := range map[string]func(*http.Request) any{
		"chat.postMessage": s.post, "chat.update": s.update, "conversations.history": s.history,
	} {
		mux.HandleFunc("POST /api/"+name, s.method(name, method))
	}
	s.Server = httptest.NewServer(s.Faults.Wrap(mux))
	tb.Cleanup(s.Close)
	return s
}

// APIURL is where the API is.
func (s *Server) APIURL() string { return s.URL + "/api" }

// Refuse makes a method answer with the error; "" lets it work again.
func (s *Server) Refuse(method, refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[method] = refusal
}

// Messages are those in the channel, the oldest first.
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

// Chatter puts messages of others into the channel.
func (s *Server) Chatter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.messages = append(s.messages, &Message{TS: s.ts(), Text: "chatter"})
	}
}

// Calls is how often the method was called.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func refusal(text string) map[string]any { return map[string]any{"ok": false, "error": text} }

func (s *Server) method(name string, serve func(*http.Request) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if err := r.ParseForm(); err != nil {
			answer(w, refusal("invalid_form_data"))
			return
		}
		if name != "conversations.history" {
			if wait, ok := s.Limit.Allow(); !ok {
				w.Header().Set("Retry-After", strconv.Itoa(int(wait.Seconds()+0.999)))
				w.WriteHeader(http.StatusTooManyRequests)
				answer(w, refusal("ratelimited"))
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
			answer(w, refusal("invalid_auth"))
		case s.refuse[name] != "":
			answer(w, refusal(s.refuse[name]))
		case r.Form.Get("channel") != Channel:
			answer(w, refusal("channel_not_found"))
		default:
			answer(w, serve(r))
		}
	}
}

func answer(w http.ResponseWriter, body any) {
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a client that is gone
}

// ts is the time of a new message: different for each, and in order.
func (s *Server) ts() string {
	s.clock++
	return fmt.Sprintf("%d.%06d", time.Now().Unix(), s.clock)
}

func (s *Server) read(r *http.Request, m *Message) any {
	text := r.Form.Get("text")
	switch {
	case text == "":
		return refusal("no_text")
	case len([]rune(text)) > 40000:
		return refusal("msg_too_long")
	}
	m.Text = text
	if metadata := r.Form.Get("metadata"); metadata != "" {
		if !json.Valid([]byte(metadata)) {
			return refusal("invalid_metadata_format")
		}
		m.Metadata = json.RawMessage(metadata)
	}
	return nil
}

func (s *Server) post(r *http.Request) any {
	m := &Message{TS: s.ts()}
	if refused := s.read(r, m); refused != nil {
		return refused
	}
	s.messages = append(s.messages, m)
	return map[string]any{"ok": true, "channel": Channel, "ts": m.TS, "message": m}
}

func (s *Server) update(r *http.Request) any {
	for _, m := range s.messages {
		if m.TS == r.Form.Get("ts") {
			if refused := s.read(r, m); refused != nil {
				return refused
			}
			m.Edits++
			return map[string]any{"ok": true, "channel": Channel, "ts": m.TS, "text": m.Text}
		}
	}
	return refusal("message_not_found")
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
			return refusal("invalid_cursor")
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

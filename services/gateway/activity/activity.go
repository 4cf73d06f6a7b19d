// Package activity counts what people do in workspaces, and decides when it is published: at most once a minute for
// each person and workspace, and only after input. A connection that is open without input is no activity, and neither
// is what a program sends by itself in equal intervals: keep-alives of an editor, and pages that poll. It has no I/O.
package activity

import (
	"hash/fnv"
	"sync"
	"time"
)

// interval is the shortest time between two records of a person in a workspace.
const interval = time.Minute

// Record is what a person has done in a workspace since the last record.
type Record struct {
	WorkspaceID string
	UserID      int64
	// InputAt is the time of the last input.
	InputAt time.Time
	// Sessions are the open connections of the person.
	Sessions int
	// ReceivedBytes came from the person, SentBytes from the workspace.
	ReceivedBytes, SentBytes int64
}

type key struct {
	workspace string
	user      int64
}

// count is what is known of a person in a workspace. It is kept until it was published and no session is left.
type count struct {
	Record

	due time.Time // no record before
	// requests that programs send by themselves; the last one was at requestAt.
	requests  periodic
	requestAt time.Time
}

// Table counts. It is safe for concurrent use. Create it with New.
type Table struct {
	now func() time.Time

	mu     sync.Mutex
	counts map[key]*count
}

// New returns an empty table.
func New(now func() time.Time) *Table { return &Table{now: now, counts: map[key]*count{}} }

// Session is one connection or request of a person. Close it at its end.
type Session struct {
	table *Table
	key   key
	once  sync.Once
	// messages that programs send by themselves; nil before the first one.
	messages periodic
}

// maxKeepAlive is the size of the largest message that may be a keep-alive.
const maxKeepAlive = 4096

// Open begins a session.
func (t *Table) Open(workspace string, user int64) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{workspace, user}
	t.count(k).Sessions++
	return &Session{table: t, key: k}
}

// count returns the count of a key. The lock must be held.
func (t *Table) count(k key) *count {
	c, known := t.counts[k]
	if !known {
		c = &count{Record: Record{WorkspaceID: k.workspace, UserID: k.user}}
		t.counts[k] = c
	}
	return c
}

// Input reports a message of the person. It is no activity if messages of its size come in equal
// intervals.
func (s *Session) Input(bytes int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	c, now := s.table.count(s.key), s.table.now()
	c.ReceivedBytes += int64(bytes)
	if s.messages == nil {
		s.messages = periodic{}
	}
	if bytes > maxKeepAlive || !s.messages.repeats(uint64(max(bytes, 0)), now) {
		c.InputAt = now
	}
}

// Request reports a request of the person, such as "GET /status". It is no activity if such requests come in
// equal intervals, in any session.
func (s *Session) Request(name string, bytes int) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name)) // it never fails
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	c, now := s.table.count(s.key), s.table.now()
	c.ReceivedBytes += int64(bytes)
	if c.requests == nil {
		c.requests = periodic{}
	}
	c.requestAt = now
	if !c.requests.repeats(hash.Sum64(), now) {
		c.InputAt = now
	}
}

// Sent reports bytes that the person got.
func (s *Session) Sent(bytes int) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.table.count(s.key).SentBytes += int64(bytes)
}

// Close ends the session.
func (s *Session) Close() {
	s.once.Do(func() {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		c := s.table.count(s.key)
		c.Sessions--
	})
}

// Take returns the records to publish now, and begins to count anew.
func (t *Table) Take() []Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var records []Record
	for k, c := range t.counts {
		switch {
		case !c.InputAt.IsZero() && !now.Before(c.due):
			records = append(records, c.Record)
			c.InputAt, c.ReceivedBytes, c.SentBytes = time.Time{}, 0, 0
			c.due = now.Add(interval)
		case c.InputAt.IsZero() && c.Sessions == 0 && !now.Before(c.due) && now.Sub(c.requestAt) > maxPeriod:
			delete(t.counts, k)
		}
	}
	return records
}

// Return takes a record back that was not published. It is due at once.
func (t *Table) Return(r Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.count(key{r.WorkspaceID, r.UserID})
	if c.InputAt.Before(r.InputAt) {
		c.InputAt = r.InputAt
	}
	c.ReceivedBytes += r.ReceivedBytes
	c.SentBytes += r.SentBytes
	c.due = time.Time{}
}

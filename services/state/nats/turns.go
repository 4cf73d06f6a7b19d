package nats

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// turns are requests that wait, those of each agent in its own line: whoever asks much waits for itself, and takes nobody else's place.
type turns struct {
	// most that wait in one line.
	most int

	mu    sync.Mutex
	lines map[int64][]*nats.Msg
	// next are the agents with a line, whose turn comes in this order.
	next []int64
	// some has room for one, and holds it while there may be somebody to serve.
	some chan struct{}
}

func newTurns(most int) *turns {
	return &turns{most: most, lines: map[int64][]*nats.Msg{}, some: make(chan struct{}, 1)}
}

// join puts a request at the end of its agent's line, and says whether there was room.
func (t *turns) join(agent int64, msg *nats.Msg) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	line, waits := t.lines[agent]
	if len(line) >= t.most {
		return false
	}
	t.lines[agent] = append(line, msg)
	if !waits {
		t.next = append(t.next, agent)
	}
	t.call()
	return true
}

// take gives the request whose turn it is, if any waits.
func (t *turns) take() (*nats.Msg, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.next) == 0 {
		return nil, false
	}
	agent := t.next[0]
	t.next = t.next[1:]
	line := t.lines[agent]
	msg := line[0]
	if line = line[1:]; len(line) == 0 {
		delete(t.lines, agent)
	} else {
		t.lines[agent] = line
		t.next = append(t.next, agent)
	}
	if len(t.next) > 0 {
		t.call()
	}
	return msg, true
}

// call says that somebody waits. The lock must be held.
func (t *turns) call() {
	select {
	case t.some <- struct{}{}:
	default:
	}
}

package nats

import (
	"sync"

	"github.com/nats-io/nats.go"
)

// fairQueue is a round-robin queue by agent. An agent with many requests does not delay others. It is safe for
// concurrent use.
type fairQueue struct {
	// limit of waiting requests of one agent.
	limit int

	mu     sync.Mutex
	queues map[int64][]*nats.Msg
	// order holds the agents with requests, in the order in which they are served.
	order []int64
	// ready holds one element while there may be a request.
	ready chan struct{}
}

func newFairQueue(limit int) *fairQueue {
	return &fairQueue{limit: limit, queues: map[int64][]*nats.Msg{}, ready: make(chan struct{}, 1)}
}

// push appends a request to its agent's queue. It returns false if that queue is full.
func (q *fairQueue) push(agent int64, msg *nats.Msg) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue, waiting := q.queues[agent]
	if len(queue) >= q.limit {
		return false
	}
	q.queues[agent] = append(queue, msg)
	if !waiting {
		q.order = append(q.order, agent)
	}
	q.signal()
	return true
}

// pop returns the next request; false without one.
func (q *fairQueue) pop() (*nats.Msg, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return nil, false
	}
	agent := q.order[0]
	q.order = q.order[1:]
	queue := q.queues[agent]
	msg := queue[0]
	if queue = queue[1:]; len(queue) == 0 {
		delete(q.queues, agent)
	} else {
		q.queues[agent] = queue
		q.order = append(q.order, agent)
	}
	if len(q.order) > 0 {
		q.signal()
	}
	return msg, true
}

// signal wakes one reader. The lock must be held.
func (q *fairQueue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

package outbox

import (
	"sync/atomic"
	"time"
)

const (
	// maxOffers is how many offers wait at most; what is offered beyond is found in the database.
	maxOffers = 64
	// freshFor is how old an offer may be. One that a process stopped for longer with may be of a message that has been published and has gone since.
	freshFor = time.Second
)

// Offer hands messages that a transaction of this process has just committed to the publisher, which saves it the way to the database to find them, or has it look for them
// there when others wait before them. While this replica publishes there is no other notification: an offer that is lost costs up to Config.Interval. While another one does, an offer is nothing.
// Offering before the commit is an error of the caller that would publish what may never be true.
func (p *Publisher) Offer(q *Queued) {
	switch {
	case p == nil || len(q.rows) == 0:
	case q.first:
		p.offers.add(offer{rows: q.rows, at: time.Now()})
	default:
		p.offers.poke()
	}
}

// offer are rows that were committed at the time.
type offer struct {
	rows []row
	at   time.Time
}

// offers go from writers to the session of this process, if there is one.
type offers struct {
	taken   *atomic.Bool // whether there is a session
	waiting chan offer
	wake    chan struct{}
}

func newOffers() offers {
	return offers{taken: new(atomic.Bool), waiting: make(chan offer, maxOffers), wake: make(chan struct{}, 1)}
}

func (o offers) add(made offer) {
	if !o.taken.Load() {
		return
	}
	select {
	case o.waiting <- made:
	default: // it is found in the database
	}
	o.poke()
}

// poke wakes the session.
func (o offers) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o offers) open() { o.taken.Store(true) }

func (o offers) close() {
	o.taken.Store(false)
	o.take(time.Now())
}

// take returns the rows of all fresh offers.
func (o offers) take(now time.Time) []row {
	var rows []row
	for {
		select {
		case made := <-o.waiting:
			if now.Sub(made.at) < freshFor {
				rows = append(rows, made.rows...)
			}
		default:
			return rows
		}
	}
}

package session

import (
	"context"

	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/nats"
)

// pageMembers and pageBytes limit the members in one message. A change waits while the state service processes the
// messages before it, so they are small.
const (
	pageMembers = 50
	pageBytes   = 128 << 10
)

// deliverMembers publishes members of a full resync, many in one message. A member is published in an event of its own
// if it was in a message that failed, since it may be the reason.
func (p *pipeline) deliverMembers(ctx context.Context, members []delivery.Delivery, b *batchSpan) {
	var page []delivery.Delivery
	for _, d := range members {
		if d.ResyncID == "" || d.Attempt > 1 || d.TooLarge {
			p.deliverAlone(ctx, d, b)
		} else {
			page = append(page, d)
		}
	}
	p.deliverPage(ctx, page, b)
}

// deliverPage publishes members in one message, or in several if it would be too large.
func (p *pipeline) deliverPage(ctx context.Context, page []delivery.Delivery, b *batchSpan) {
	switch len(page) {
	case 0:
		return
	case 1:
		p.deliverAlone(ctx, page[0], b)
		return
	}
	p.pages++
	message, err := p.reporter.Members(page, p.pages, p.Clock.Now())
	if err != nil {
		p.settle(ctx, page, err) // then each is published alone
		return
	}
	msg, err := encode(message, b.parent)
	if err != nil {
		p.settle(ctx, page, err)
		return
	}
	if nats.Size(msg) > min(pageBytes, p.MaxMessage, p.Publisher.Limit()) {
		half := len(page) / 2
		p.deliverPage(ctx, page[:half:half], b)
		p.deliverPage(ctx, page[half:], b)
		return
	}
	if p.enterWindow(ctx) {
		p.send(ctx, msg, page, b)
	}
}

func (p *pipeline) deliverAlone(ctx context.Context, d delivery.Delivery, b *batchSpan) {
	if p.enterWindow(ctx) {
		p.deliver(ctx, d, b)
	}
}

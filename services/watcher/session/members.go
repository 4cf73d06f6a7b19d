package session

import (
	"context"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
)

const (
	// pageMembers and pageBytes limit the members in one message. A change waits while the state service processes the
	// messages before it, so they are small.
	pageMembers = 50
	pageBytes   = 128 << 10
	// pageOverhead is more than the headers and the data of a message beside its members. memberOverhead is that of a
	// member.
	pageOverhead   = 2 << 10
	memberOverhead = 32
)

// page is a message in the making, with members of a full resync.
type page struct {
	deliveries []delivery.Delivery
	members    []events.ResyncMember
	bytes      int
}

// deliverMembers publishes members of a full resync, many in one message. A member is published in an event of its own
// if it was in a message that failed, since it may be the reason, or if it is too large for a message with others.
func (p *pipeline) deliverMembers(ctx context.Context, members []delivery.Delivery, b *batchSpan) {
	limit := min(pageBytes, p.MaxMessage, p.Publisher.Limit())
	var next page
	for _, d := range members {
		if len(members) == 1 || d.ResyncID == "" || d.Attempt > 1 || d.TooLarge {
			p.deliverAlone(ctx, d, b)
			continue
		}
		member, err := p.reporter.Member(d)
		if err != nil {
			p.omit(ctx, d, err)
			continue
		}
		size := len(member.Type) + len(member.Data) + memberOverhead
		if size+pageOverhead > limit {
			p.deliverAlone(ctx, d, b)
			continue
		}
		if next.bytes+size+pageOverhead > limit {
			p.deliverPage(ctx, next, b)
			next = page{}
		}
		next.deliveries, next.members = append(next.deliveries, d), append(next.members, member)
		next.bytes += size
	}
	p.deliverPage(ctx, next, b)
}

// deliverPage publishes the members of a page.
func (p *pipeline) deliverPage(ctx context.Context, members page, b *batchSpan) {
	switch len(members.members) {
	case 0:
		return
	case 1:
		p.deliverAlone(ctx, members.deliveries[0], b)
		return
	}
	p.pages++
	message, err := p.reporter.Members(members.deliveries[0].ResyncID, p.pages, members.members, p.Clock.Now())
	if err != nil {
		p.settle(ctx, members.deliveries, err) // each is then published alone
		return
	}
	msg, err := encode(message, b.parent)
	if err != nil {
		p.settle(ctx, members.deliveries, err)
		return
	}
	if p.enterWindow(ctx) {
		p.send(ctx, msg, members.deliveries, b)
	}
}

func (p *pipeline) deliverAlone(ctx context.Context, d delivery.Delivery, b *batchSpan) {
	if p.enterWindow(ctx) {
		p.deliver(ctx, d, b)
	}
}

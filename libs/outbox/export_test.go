package outbox

import "context"

// OnPublish is called before each message is sent.
func (p *Publisher) OnPublish(f func(ctx context.Context, subject string, id int64)) {
	p.hooks.publish = func(ctx context.Context, r row) { f(ctx, r.subject, r.id) }
}

// OnAcknowledged is called between the acknowledgement of messages and the removal of their rows;
// an error ends the session there, as a crash does.
func (p *Publisher) OnAcknowledged(f func() error) { p.hooks.acknowledged = f }

// OnWaiting is called when nothing is left to publish.
func (p *Publisher) OnWaiting(f func()) { p.hooks.waiting = f }

// ValidateSubject returns why a subject is invalid.
func ValidateSubject(subject string) error { return validateSubject(subject) }

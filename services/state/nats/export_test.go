package nats

import "github.com/nats-io/nats.go"

// Plain is whether the data of an observation is taken without decoding it or asking its schema.
func Plain(eventType string, data []byte) bool {
	kinds, err := observables()
	if err != nil {
		panic(err)
	}
	kind := kinds[eventType]
	return kind.shape.Read(string(data), make([]string, kind.shape.Slots()))
}

// WithoutZeroBytes is withoutZeroBytes.
func WithoutZeroBytes(data []byte) []byte { return withoutZeroBytes(data) }

// Turns are turns.
type Turns struct{ *turns }

// NewTurns is newTurns.
func NewTurns(most int) Turns { return Turns{newTurns(most)} }

// Join is join.
func (t Turns) Join(agent int64, msg *nats.Msg) bool { return t.join(agent, msg) }

// Take is take.
func (t Turns) Take() (*nats.Msg, bool) { return t.take() }

// Some is some.
func (t Turns) Some() <-chan struct{} { return t.some }

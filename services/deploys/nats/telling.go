package nats

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/rollout"
)

// telling is a fact on its way to everybody.
type telling struct {
	fact events.DeployFact
	// trace is the traceparent of what it follows from; empty for none.
	trace string
	// position on the stream once it is there.
	position int64
	// known is that the database has it already; stored that this batch has written it.
	known, stored bool

	// written is the fact as JSON and as a message, once it is written with this sequence. A message that was sent is no longer there.
	written  int
	raw      []byte
	envelope *nats.Msg
}

// write writes the fact, unless it is written as it is.
func (t *telling) write(cell topology.Cell) error {
	if t.written == t.fact.Sequence {
		return nil
	}
	raw, err := json.Marshal(t.fact)
	if err != nil {
		return fmt.Errorf("write fact %s: %w", t.id(), err)
	}
	e, err := cdevent.From(string(cell), t.fact, raw)
	if err != nil {
		return fmt.Errorf("write fact %s: %w", t.id(), err)
	}
	if t.trace != "" {
		e.SetExtension(event.TraceParent, t.trace)
	}
	w := &t.fact.Workload
	msg, err := event.Encode(e, cell.Deploy(w.ClusterUID, w.Namespace, w.Kind, w.Name, string(t.fact.Fact)))
	if err != nil {
		return fmt.Errorf("write fact %s: %w", t.id(), err)
	}
	t.raw, t.envelope, t.written = raw, msg, t.fact.Sequence
	return nil
}

// adopt takes over the fact as it stands on the stream.
func (t *telling) adopt(on *told) {
	t.fact, t.position, t.written = on.fact, on.position, 0
}

// writeAll writes facts on all processors.
func writeAll(cell topology.Cell, tellings []*telling) error {
	const some = 32
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(tellings, some) {
		group.Go(func() error {
			for _, t := range part {
				if err := t.write(cell); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait() //nolint:wrapcheck // says what failed
}

func (t *telling) id() string { return rollout.ID(t.fact) }

// row is the fact as it is stored.
func (t *telling) row(cell topology.Cell, workload uuid.UUID) (postgres.Fact, error) {
	if err := t.write(cell); err != nil {
		return postgres.Fact{}, err
	}
	f := postgres.Fact{
		ID: t.id(), Workload: workload, Sequence: int64(t.fact.Sequence), Fact: string(t.fact.Fact), OccurredAt: t.fact.OccurredAt, ObservedAt: t.fact.ObservedAt,
		Data: string(t.raw), StreamSequence: t.position,
	}
	if t.fact.Rollout != nil {
		f.RolloutID = t.fact.Rollout.ID
	}
	return f, nil
}

// message is the fact as a message that the stream takes only if the last one about its workload is at the position given.
func (t *telling) message(cell topology.Cell, last int64) (*nats.Msg, error) {
	if t.envelope == nil {
		t.written = 0
	}
	if err := t.write(cell); err != nil {
		return nil, err
	}
	// One that was sent belongs to the client, which may send it again.
	msg := t.envelope
	t.envelope = nil
	w := &t.fact.Workload
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatInt(last, 10)}
	msg.Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{cell.DeployAll(w.ClusterUID, w.Namespace, w.Kind, w.Name)}
	return msg, nil
}

// told is a fact that is on the stream.
type told struct {
	id       string
	fact     events.DeployFact
	position int64
}

// same says whether the stream has the fact there: the same one, or what the same observation said of the same thing, told by one who counted
// differently.
func (t *telling) same(on *told) bool {
	if on.id == t.id() {
		return true
	}
	a, b := &t.fact, &on.fact
	return a.Fact == b.Fact && a.Ordinal == b.Ordinal && a.ObservedAt.Equal(b.ObservedAt) && a.OccurredAt.Equal(b.OccurredAt) && rolloutID(a) == rolloutID(b)
}

func rolloutID(f *events.DeployFact) string {
	if f.Rollout == nil {
		return ""
	}
	return f.Rollout.ID
}

// readTold reads a message of the stream DEPLOYS. What is none of this service's counts as one that says nothing.
func readTold(m *jetstream.RawStreamMsg) told {
	out := told{position: int64(m.Sequence)}
	e, err := event.Decode(m.Header, m.Data)
	if err != nil {
		return out
	}
	out.id = e.ID()
	if fact, err := cdevent.Read(e); err == nil {
		out.fact = fact
	}
	return out
}

// chain is what is to be told of one workload, in order.
type chain struct {
	workload uuid.UUID
	name     events.Workload
	tellings []*telling
	// next of the tellings.
	next int
	// told is the position of the last message about the workload, as far as is known.
	told *int64
	// sequence of the state, which counts on from what the stream has.
	sequence *int
	refusals int
	// store adds what the chain is of to what is written.
	store func(writing *postgres.Writing) error
}

func newChain(workload uuid.UUID, tellings []*telling, at *int64, sequence *int) *chain {
	return &chain{workload: workload, name: tellings[0].fact.Workload, tellings: tellings, told: at, sequence: sequence}
}

func (c *chain) filter(cell topology.Cell) string {
	return cell.DeployAll(c.name.ClusterUID, c.name.Namespace, c.name.Kind, c.name.Name)
}

// left are the facts that are not there yet.
func (c *chain) left() []*telling { return c.tellings[c.next:] }

// skip goes on to the next fact that the database does not have.
func (c *chain) skip() {
	for c.next < len(c.tellings) && c.tellings[c.next].known {
		c.next++
	}
}

// renumber makes the facts that are left, and the state, count from a sequence on.
func (c *chain) renumber(first int) {
	left := c.left()
	if len(left) == 0 {
		return
	}
	by := first - left[0].fact.Sequence
	if by <= 0 {
		return
	}
	for _, t := range left {
		t.fact.Sequence += by
	}
	*c.sequence += by
}

// publicMemory is how long the stream keeps what it was told.
func publicMemory() time.Duration {
	for _, s := range topology.Streams() {
		if s.Name == topology.StreamDeploys {
			return s.MaxAge
		}
	}
	return 0
}

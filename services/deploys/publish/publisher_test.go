package publish_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/publish"
)

// fakeStream is a stream in memory with messages about one workload.
type fakeStream struct{ messages []publish.Published }

func (s *fakeStream) newest() (p publish.Published) {
	if n := len(s.messages); n > 0 {
		p = s.messages[n-1]
	}
	return p
}

func (s *fakeStream) Publish(f *publish.Fact, expected int64) (publish.Ack, error) {
	newest := s.newest().Position
	if newest != expected {
		return func(context.Context) (int64, error) { return 0, publish.ErrConflict }, nil
	}
	s.messages = append(s.messages, publish.Published{ID: f.ID(), DeployFact: f.DeployFact, Position: newest + 1})
	return func(context.Context) (int64, error) { return newest + 1, nil }, nil
}

func (s *fakeStream) After(_ context.Context, _ events.Workload, position int64) ([]publish.Published, error) {
	return s.messages[position:], nil
}

func (s *fakeStream) Newest(context.Context, events.Workload) (publish.Published, error) {
	return s.newest(), nil
}

func (s *fakeStream) At(_ context.Context, position int64) (publish.Published, error) {
	return s.messages[position-1], nil
}

func (s *fakeStream) FirstPosition(context.Context) (int64, error) { return 1, nil }

func (s *fakeStream) MaxAge() time.Duration { return time.Hour }

// storedFacts are the facts of the database, by sequence.
type storedFacts []publish.Fact

func (s storedFacts) Between(_ context.Context, _ uuid.UUID, above, below int64, _ time.Duration) (
	[]publish.Fact, error,
) {
	var found []publish.Fact
	for _, f := range s {
		if above < int64(f.Sequence) && int64(f.Sequence) < below {
			found = append(found, f)
		}
	}
	return found, nil
}

// fact returns a fact about a workload that was observed at a second.
func fact(sequence, second int) publish.Fact {
	at := time.Date(2026, 3, 4, 5, 6, second, 0, time.UTC)
	return publish.Fact{DeployFact: events.DeployFact{
		Fact: events.FactRemoved, Sequence: sequence, ObservedAt: at, OccurredAt: at, Workload: events.Workload{Name: "web"},
	}}
}

func publishAll(t *testing.T, s *fakeStream, stored storedFacts, position int64, facts ...publish.Fact) (
	*publish.Queue, map[string]int64,
) {
	t.Helper()
	queued := make([]*publish.Fact, len(facts))
	for i := range facts {
		queued[i] = &facts[i]
	}
	q := publish.NewQueue(queued, position)
	p := publish.Publisher{Stream: s, Logger: slog.New(slog.DiscardHandler)}
	republished, err := p.Publish(t.Context(), stored, []*publish.Queue{q})
	require.NoError(t, err)
	require.EqualValues(t, len(s.messages), q.Position)
	return q, republished
}

func sequences(s *fakeStream) []int {
	var all []int
	for _, m := range s.messages {
		all = append(all, m.Sequence)
	}
	return all
}

func TestFactsOnStreamAreSkipped(t *testing.T) {
	t.Parallel()
	s := &fakeStream{}
	publishAll(t, s, nil, 0, fact(1, 1), fact(2, 2))
	// A crash before the commit: the position is unknown. One more fact follows.
	q, republished := publishAll(t, s, nil, 0, fact(1, 1), fact(2, 2), fact(3, 3))
	require.Equal(t, []int{1, 2, 3}, sequences(s))
	require.Empty(t, republished)
	require.Zero(t, q.Shift)
}

func TestFactsLostByStreamAreRepublishedInOrder(t *testing.T) {
	t.Parallel()
	s := &fakeStream{}
	stored := storedFacts{fact(1, 1), fact(2, 2)}
	publishAll(t, s, nil, 0, fact(1, 1))
	// The stream was restored without the second fact: the expected position does not exist.
	_, republished := publishAll(t, s, stored, 1, fact(2, 2))
	require.Empty(t, republished)
	s.messages = s.messages[:1]
	queued := fact(3, 3)
	q := publish.NewQueue([]*publish.Fact{&queued}, 1)
	q.Position = 0
	p := publish.Publisher{Stream: s, Logger: slog.New(slog.DiscardHandler)}
	republished, err := p.Publish(t.Context(), stored, []*publish.Queue{q})
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 3}, sequences(s))
	require.Len(t, republished, 1)
}

func TestFactsAreRenumberedAfterUnknownFactsOfStream(t *testing.T) {
	t.Parallel()
	s := &fakeStream{}
	publishAll(t, s, nil, 0, fact(1, 1), fact(2, 2), fact(3, 3))
	// The database was restored: it has only the first fact, and derives another second one.
	other := fact(2, 9)
	other.Workload.UID = "other"
	q, _ := publishAll(t, s, nil, 1, other)
	require.Equal(t, []int{1, 2, 3, 4}, sequences(s))
	require.Equal(t, 2, q.Shift)
}

func TestPublishFailsWithAnotherWriter(t *testing.T) {
	t.Parallel()
	f := fact(1, 1)
	q := publish.NewQueue([]*publish.Fact{&f}, 0)
	p := publish.Publisher{Stream: &conflictingStream{}, Logger: slog.New(slog.DiscardHandler)}
	_, err := p.Publish(t.Context(), storedFacts{}, []*publish.Queue{q})
	require.ErrorContains(t, err, "another writer publishes on the same subjects")
}

// conflictingStream is a stream whose newest message is never the expected one.
type conflictingStream struct{ fakeStream }

func (s *conflictingStream) Publish(*publish.Fact, int64) (publish.Ack, error) {
	return func(context.Context) (int64, error) { return 0, publish.ErrConflict }, nil
}

func TestEncodedFactFollowsItsChanges(t *testing.T) {
	t.Parallel()
	first, second := fact(1, 1), fact(2, 2)
	q := publish.NewQueue([]*publish.Fact{&first, &second}, 0)
	requireEncoded := func() {
		t.Helper()
		for _, f := range q.Facts() {
			want, err := json.Marshal(f.DeployFact)
			require.NoError(t, err)
			got, err := f.Encode()
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(got))
		}
	}
	requireEncoded()
	published := publish.Published{DeployFact: first.DeployFact, Position: 1}
	published.Sequence = 7
	q.Merge([]publish.Published{published})
	require.Equal(t, 8, second.Sequence)
	requireEncoded()
}

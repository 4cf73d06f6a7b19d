package delivery_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

// simulation is a cluster, a watch that lags, a queue, a stream that loses and repeats messages, and a
// reader with the rules of the state service. The bytes of the fuzzer are its steps.
type simulation struct {
	t           *testing.T
	version     int
	cluster     map[string]object.Version // by name
	generations map[string]int
	watch       []object.Version // what the watch has not reported yet
	store       map[string]object.Version
	queue       *delivery.Queue
	inFlight    []delivery.Delivery
	rows        map[string]row
	last        map[object.Key]delivery.Delivery // last stored of each object
	newest      map[string]delivery.Delivery     // last stored of each name
	resyncs     int
	running     bool
	listing     []object.List   // read, not begun
	listAt      int             // version of the running resync's listing
	arrived     map[string]bool // by name
	expects     int
	now         time.Time
	newQueue    func() *delivery.Queue
	every       bool            // every version is published
	watched     map[string]bool // versions that the queue received and that are not stored yet
	skipped     int             // dropped versions, as counted in deliveries
	stale       bool            // the watch was lost since the last list
	complete    bool            // no restart or relist has lost a change since the last resync
}

type row struct {
	version  int
	live     bool
	resyncID string
	uid      string
}

func newSimulation(t *testing.T, every bool, newQueue func() *delivery.Queue) *simulation {
	t.Helper()
	return &simulation{
		newQueue:    newQueue,
		complete:    true,
		every:       every,
		watched:     map[string]bool{},
		t:           t,
		version:     10,
		cluster:     map[string]object.Version{},
		generations: map[string]int{},
		store:       map[string]object.Version{},
		queue:       newQueue(),
		rows:        map[string]row{},
		last:        map[object.Key]delivery.Delivery{},
		newest:      map[string]delivery.Delivery{},
		now:         epoch(),
	}
}

func (s *simulation) observe(name string, verb events.Verb) object.Version {
	s.version++
	v := versionOf(name, fmt.Sprintf("%s-%d", name, s.generations[name]), s.version, verb)
	v.ObservedAt = s.now
	return v
}

func (s *simulation) write(name string) {
	if _, exists := s.cluster[name]; !exists {
		s.generations[name]++
	}
	v := s.observe(name, events.VerbUpserted)
	s.cluster[name] = v
	s.watch = append(s.watch, v)
}

func (s *simulation) remove(name string) {
	if _, exists := s.cluster[name]; exists {
		delete(s.cluster, name)
		s.watch = append(s.watch, s.observe(name, events.VerbDeleted))
	}
}

// deliver reports the next change of the watch.
func (s *simulation) deliver() {
	if len(s.watch) == 0 {
		return
	}
	next := s.watch[0]
	s.watch = s.watch[1:]
	if next.Verb == events.VerbDeleted {
		delete(s.store, next.Object.GetName())
	} else {
		s.store[next.Object.GetName()] = next
	}
	// An object that was created and deleted between two lists, and never published, stays unknown.
	if _, known := s.last[next.Key()]; known || s.queue.Exists(next.Key()) || atoi(s.t, next.ResourceVersion) > s.listAt {
		s.watched[keyOf(next)] = true
	}
	s.queue.Add(next)
}

func keyOf(s object.Version) string {
	return string(s.Object.GetUID()) + "@" + s.ResourceVersion + " " + string(s.Verb)
}

// relist loses the watch: a new list shows the result of the changes meanwhile.
func (s *simulation) relist() {
	s.watch = nil
	// A member that was deleted since the list, and that the watch has never reported, exists until the next resync.
	s.stale, s.complete = true, s.complete && s.listing == nil && !s.running
	for name, known := range s.store {
		now, exists := s.cluster[name]
		if !exists || now.Object.GetUID() != known.Object.GetUID() {
			known.Verb = events.VerbDeleted
			s.queue.Add(with(object.Missed, known))
			delete(s.store, name)
		}
	}
	for name, now := range s.cluster {
		s.store[name] = now
		s.queue.Add(now)
	}
}

// restart loses the queue; messages in flight may still be stored.
func (s *simulation) restart() {
	s.queue, s.watch, s.store = s.newQueue(), nil, map[string]object.Version{}
	s.running, s.listing, s.inFlight, s.complete = false, nil, nil, false
	clear(s.watched)
	s.last, s.newest = map[object.Key]delivery.Delivery{}, map[string]delivery.Delivery{}
	for name, now := range s.cluster {
		s.store[name] = now
		s.queue.Add(with(object.Initial, now))
	}
}

// list lists the objects of a resync. Its begin event is stored later, by begin.
func (s *simulation) list() {
	if s.running || s.listing != nil {
		return
	}
	s.queue.BeginList()
	s.stale = false
	listed := object.List{Kind: object.Deployment, ResourceVersion: fmt.Sprint(s.version), ListedAt: s.now}
	s.listAt = s.version
	for _, o := range s.cluster {
		listed.Objects = append(listed.Objects, o.Object)
	}
	s.listing = []object.List{listed}
}

// begin stores the begin event of the listed resync. In a new epoch the reader treats all earlier versions as older.
func (s *simulation) begin(newEpoch bool) {
	if s.listing == nil {
		return
	}
	for s.every && s.queue.Behind(s.listing) > 0 && len(s.watch) > 0 {
		s.deliver()
	}
	s.queue.Pause()
	known := max(s.listAt, atoi(s.t, cmp.Or(s.queue.KnownVersions()[object.Deployment], "0")))
	for name, r := range s.rows {
		require.LessOrEqual(s.t, r.version, known,
			"%s was published above the known version before the begin: the cluster would look restored", name)
		if newEpoch {
			r.version = 0 // any version of the new epoch is later
			s.rows[name] = r
		}
	}
	s.resyncs++
	s.running, s.arrived, s.expects = true, map[string]bool{}, len(s.listing[0].Objects)
	s.queue.StartResync(s.id(), s.listing, s.now)
	s.listing = nil
}

func (s *simulation) id() string { return fmt.Sprintf("r%d", s.resyncs) }

// take publishes a change, or up to so many members if there is none.
func (s *simulation) take(members int) {
	taken := s.queue.Members
	if d, _, ok := s.queue.Next(s.now); ok {
		taken = func(int) []delivery.Delivery { return []delivery.Delivery{d} }
	}
	for _, d := range taken(members) {
		for _, other := range s.inFlight {
			require.NotEqual(s.t, d.ObjectName(), other.ObjectName(), "two versions of one name in flight")
		}
		s.inFlight = append(s.inFlight, d)
	}
}

// settle settles one delivery: stored and acknowledged, stored and not acknowledged, or lost.
func (s *simulation) settle(i int, how byte) {
	if len(s.inFlight) == 0 {
		return
	}
	i %= len(s.inFlight)
	d := s.inFlight[i]
	s.inFlight = append(s.inFlight[:i:i], s.inFlight[i+1:]...)
	if how%3 != 2 {
		s.stored(d)
	}
	if how%3 == 0 {
		s.skipped += d.Skipped
		s.queue.Acked(d, s.now)
		if s.running && s.queue.Outstanding() == 0 {
			s.end()
		}
		return
	}
	s.queue.Failed(d, s.now.Add(time.Second))
}

// stored simulates the state service: versions are ordered, a deletion supersedes an existing object at the same
// version, members get the resync id.
func (s *simulation) stored(d delivery.Delivery) {
	version, name := atoi(s.t, d.ResourceVersion), d.Object.GetName()
	delete(s.watched, keyOf(d.Version))
	if before, known := s.last[d.Key()]; known {
		require.GreaterOrEqual(
			s.t,
			version,
			atoi(s.t, before.ResourceVersion),
			"versions of one object go back in the stream",
		)
		if before.Verb == events.VerbDeleted {
			require.Equal(s.t, events.VerbDeleted, d.Verb, "an object is published as existing after its deletion")
		}
		changedBefore := before.ResyncID == "" && !before.FirstSeen
		require.False(s.t, d.FirstSeen && changedBefore, "an initial object is published after its change")
	}
	if before, known := s.newest[name]; known && before.Object.GetUID() != d.Object.GetUID() {
		require.Greater(s.t, version, atoi(s.t, before.ResourceVersion), "an object is published after its successor")
		require.True(
			s.t,
			before.Verb == events.VerbDeleted || d.Skipped > 0,
			"an object is published before the deletion of its predecessor",
		)
	}
	s.last[d.Key()], s.newest[name] = d, d
	if d.ResyncID == s.id() {
		s.arrived[name] = true
	}
	r := s.rows[name]
	if version > r.version || version == r.version && d.Verb == events.VerbDeleted {
		r.version, r.live, r.uid = version, d.Verb == events.VerbUpserted, string(d.Object.GetUID())
	}
	if d.ResyncID != "" && version >= r.version {
		r.resyncID = d.ResyncID
	}
	s.rows[name] = r
}

// end deletes the rows that the resync did not list and that are not above the list.
func (s *simulation) end() {
	s.running, s.complete = false, !s.stale
	require.Len(s.t, s.arrived, s.expects, "the members that were announced")
	for name, r := range s.rows {
		if !r.live || r.resyncID == s.id() || r.version > s.listAt {
			continue
		}
		o, exists := s.cluster[name]
		require.False(s.t, exists && atoi(s.t, o.ResourceVersion) <= s.listAt, "%s exists and is declared deleted", name)
		require.False(
			s.t,
			exists && string(o.Object.GetUID()) == r.uid && atoi(s.t, o.ResourceVersion) == r.version,
			"%s exists as published and is declared deleted",
			name,
		)
		r.live = false
		s.rows[name] = r
	}
}

// settleAll completes everything in flight, without losses.
func (s *simulation) settleAll() {
	for len(s.watch) > 0 {
		s.deliver()
	}
	s.begin(false)
	for rounds := 0; ; rounds++ {
		require.Less(s.t, rounds, 10_000, "the simulation did not converge")
		s.queue.RetryNow(s.now)
		s.take(1)
		if len(s.inFlight) == 0 {
			break
		}
		s.settle(0, 0)
	}
	if s.running && s.queue.Outstanding() == 0 {
		s.end()
	}
}

func (s *simulation) step(op, arg byte) {
	s.now = s.now.Add(time.Duration(arg) * 10 * time.Millisecond)
	name := string('a' + rune(arg%4))
	switch op % 12 {
	case 0, 1:
		s.write(name)
	case 2:
		s.remove(name)
	case 3, 4:
		s.deliver()
	case 5:
		s.list()
	case 6:
		s.begin(arg%3 == 0)
	case 7, 8:
		s.take(1 + int(arg%3))
	case 9, 10:
		s.settle(int(arg>>2), arg)
	case 11:
		switch {
		case arg%8 == 0:
			s.restart()
		case arg%4 == 1:
			s.relist()
		}
	}
	if s.running && s.queue.Outstanding() == 0 {
		s.end()
	}
}

func FuzzQueueLosesNoVersionAndNoObject(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 7, 0, 9, 0, 5, 0, 2, 0, 6, 0, 7, 0, 9, 0, 11, 0})
	// The watch lags behind two lists and then starts again with a list.
	f.Add([]byte{
		0, 106, 0, 116, 0, 49, 0, 193, 5, 141, 6, 47, 2, 41, 7, 189, 9, 225, 7, 218,
		9, 24, 7, 59, 9, 132, 5, 144, 6, 239, 3, 176, 3, 63, 3, 141, 11, 81,
	})
	// The watch reports a version before the deletion that a list implied.
	f.Add([]byte{0, 39, 0, 27, 2, 99, 3, 200, 5, 76, 6, 136, 7, 137, 3, 101, 9, 69, 7, 189})
	// An object is created and published between a list and its begin event, which starts an epoch.
	f.Add([]byte{5, 0, 0, 0, 3, 0, 7, 0, 9, 0, 6, 0})
	for seed := range uint64(200) {
		steps := make([]byte, 600)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), 1}).Read(steps) // never fails
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		for name, l := range map[string]struct {
			every    bool
			newQueue func() *delivery.Queue
		}{
			"the latest": {newQueue: func() *delivery.Queue { return delivery.New(delivery.Bounds{}) }},
			"every version": {
				every:    true,
				newQueue: func() *delivery.Queue { return delivery.New(delivery.Bounds{PerName: 1000, Total: 1000}) },
			},
			"as far as there is room": {
				every:    true,
				newQueue: func() *delivery.Queue { return delivery.New(delivery.Bounds{PerName: 3, Total: 5}) },
			},
		} {
			simulate(t, name, newSimulation(t, l.every, l.newQueue), steps)
		}
	})
}

func simulate(t *testing.T, what string, s *simulation, steps []byte) {
	t.Helper()
	for i := 0; i+1 < len(steps); i += 2 {
		s.step(steps[i], steps[i+1])
		pending, _ := s.queue.Pending()
		require.Equal(t, s.queue.CountPending(), pending, "%s: after %d steps", what, i/2+1)
	}
	s.settleAll()
	if s.complete {
		s.requireRowsOfCluster()
	}
	// A last resync repairs what was lost by a restart.
	s.list()
	s.settleAll()
	s.requireRowsOfCluster()
	pending, _ := s.queue.Pending()
	require.Zero(t, pending)
	require.Equal(t, len(s.cluster), s.queue.Len(), "what is gone is forgotten")
	if s.every {
		require.LessOrEqual(
			t,
			len(s.watched),
			s.skipped,
			"%s: versions that were not published are counted as skipped: %v",
			what,
			s.watched,
		)
	}
}

// requireRowsOfCluster requires that the reader knows the cluster.
func (s *simulation) requireRowsOfCluster() {
	s.t.Helper()
	for name, r := range s.rows {
		o, exists := s.cluster[name]
		require.Equal(s.t, exists, r.live, "%s", name)
		if exists {
			require.Equal(s.t, atoi(s.t, o.ResourceVersion), r.version, "%s", name)
		}
	}
	require.Len(s.t, s.cluster, liveRows(s.rows))
}

func liveRows(rows map[string]row) int {
	n := 0
	for _, r := range rows {
		if r.live {
			n++
		}
	}
	return n
}

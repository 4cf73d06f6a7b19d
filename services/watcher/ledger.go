package watcher

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// Ledger knows, for one term of leadership, which version of each object is acknowledged, which is being sent, and which is owed.
// It decides what is sent next, and is pure: no clock, no I/O. It is not safe for concurrent use.
//
//   - Of each name at most one version is in flight, and versions never go back, even where one object after the other bears the name: all versions of
//     the first, which end with its deletion, are sent before those of the second. A deletion is sent like a version, and the object is then forgotten.
//   - The next version sent is the latest known of the object, those in between are never sent; or, where [Bounds] let them wait, the one after that
//     which was acknowledged last.
//   - A version that is acknowledged is not sent again, but as a member of a full resync.
//   - Partials go before members, each in the order in which they came to be owed; one that failed waits apart and holds up nobody.
//   - A baseline is an object that was there when the term began. It is owed to the first full resync, or when it changes before.
//     FirstSeen is told with each version of a baseline until one is acknowledged: we tell of it for the first time and did
//     not see it come to be. What an earlier term or another watcher told is not known here.
type Ledger struct {
	entries  map[name]*entry
	partials queue
	members  queue
	delayed  delays
	highest  map[kube.Kind]string
	floor    map[kube.Kind]string // version of the last listing
	bounds   Bounds
	waiting  int // versions in all backlogs

	paused      bool
	resync      string
	outstanding int
}

// entry is what is known of a name.
type entry struct {
	latest   Sighting
	backlog  backlog // versions before the latest that are still to be told, of the same object or of those that bore the name before
	told     string  // version last acknowledged, empty for none
	toldVerb events.Verb
	baseline string // UID of the object that was there when the term began, as long as nothing of it is acknowledged
	held     bool   // a baseline that waits for the first resync
	left     bool   // told no more, once it was sent as a member or what is in flight has landed
	member   bool   // owed to the running resync
	refused  string

	sending          bool
	delayed          bool
	inPartials       bool
	inMembers        bool
	attempts         int
	since            time.Time // of being owed
	owedSinceIsKnown bool
}

// NewLedger begins a term: nothing is known. Of each object only the latest version waits.
func NewLedger() *Ledger { return NewHistoricLedger(Bounds{}) }

// NewHistoricLedger begins a term in which every version is told, as far as the bounds let versions wait.
func NewHistoricLedger(bounds Bounds) *Ledger {
	return &Ledger{entries: make(map[name]*entry), highest: make(map[kube.Kind]string), floor: make(map[kube.Kind]string), bounds: bounds}
}

// Enter enters a sighting as its occasion asks.
func (l *Ledger) Enter(s Sighting) {
	switch s.Occasion {
	case Initial:
		l.Baseline(s)
	case Missed:
		l.Vanished(s)
	case Left:
		l.Drop(s.Key)
	case Changed, Found:
		l.Observe(s)
	}
}

// Baseline enters an object that was there when the term began.
func (l *Ledger) Baseline(s Sighting) {
	if l.entries[s.named()] != nil {
		l.Observe(s)
		return
	}
	l.raise(s)
	l.entries[s.named()] = &entry{latest: s, baseline: s.UID, held: true}
}

// Observe enters a version of an object, or its deletion. What is older than the latest known changes nothing, and neither does what
// is not above the last listing of its kind: the watch lags behind that, and the listing knew better what is alive.
func (l *Ledger) Observe(s Sighting) {
	l.raise(s)
	e := l.entries[s.named()]
	current := s.Occasion == Found || s.newerThan(l.floor[s.Kind], events.VerbDeleted)
	if e != nil {
		e.left = false
	}
	switch {
	case e == nil && current:
		e = &entry{latest: s}
		if s.Occasion == Found {
			e.baseline = s.UID
		}
		l.entries[s.named()] = e
	case e == nil:
		return
	case s.newerThan(e.latest.Version, e.latest.Verb) && (current || s.Verb == events.VerbDeleted && s.Key == e.latest.Key):
		l.supersede(e, s)
	case s.Version == e.latest.Version && s.Verb == e.latest.Verb:
		e.latest.Object = s.Object // the informer's own, so that one copy is held
	}
	l.schedule(e, s.SeenAt)
}

// Vanished enters an object whose deletion was missed: it is gone at some version that is not known, so the last known one stands for it.
func (l *Ledger) Vanished(s Sighting) {
	s.Occasion = Missed
	if e := l.entries[s.named()]; e != nil && e.latest.Key == s.Key {
		s.Version = later(s.Version, e.latest.Version)
	}
	l.Observe(s)
}

// Drop forgets an object that is there and told no more. What was announced as a member is still sent.
func (l *Ledger) Drop(key Key) {
	e := l.entries[key.named()]
	switch {
	case e == nil || e.latest.Key != key:
	case e.member || e.sending:
		e.left = true
	default:
		l.forget(e)
	}
}

// forget an object, and its name, unless something of those that bore it before is still to be told.
func (l *Ledger) forget(e *entry) {
	l.waiting -= e.backlog.without(e.latest.Key)
	n := len(e.backlog)
	if n == 0 {
		delete(l.entries, e.latest.named())
		return
	}
	e.latest, e.left = e.backlog[n-1], false
	e.backlog = e.backlog[:n-1]
	l.waiting--
}

func (l *Ledger) raise(s Sighting) { l.highest[s.Kind] = later(s.Version, l.highest[s.Kind]) }

// supersede makes a sighting the latest of its name. The one before is told first, where versions may wait and it is not told, and so is the deletion of what
// bore the name before.
func (l *Ledger) supersede(e *entry, s Sighting) {
	another := s.Key != e.latest.Key
	if another && e.latest.Verb != events.VerbDeleted { // nobody saw it go
		l.supersede(e, e.latest.gone(s.SeenAt))
	}
	switch {
	case !e.held && !e.changed():
	case l.bounds.PerObject > 0:
		l.waiting += e.backlog.push(e.latest, &s, e.sending, l.bounds, l.bounds.Total-l.waiting)
	case another:
		e.backlog = append(e.backlog, e.latest)
		l.waiting++
	}
	e.latest, e.held = s, false
	if len(e.backlog) == 0 {
		e.attempts = 0
	}
}

// next is the version of an entry that is to be told next.
func (e *entry) next() *Sighting {
	if len(e.backlog) > 0 {
		return &e.backlog[0]
	}
	return &e.latest
}

// Highest is the highest version of a kind that is known.
func (l *Ledger) Highest(kind kube.Kind) string { return l.highest[kind] }

// Held returns the object if it is known in exactly this version, so that a second copy need not be kept.
func (l *Ledger) Held(key Key, version string) metav1.Object {
	if e := l.entries[key.named()]; e != nil && e.latest.Key == key && e.latest.Version == version && e.latest.Verb == events.VerbUpserted {
		return e.latest.Object
	}
	return nil
}

// Alive tells whether an object is known, and not as gone.
func (l *Ledger) Alive(key Key) bool {
	e := l.entries[key.named()]
	return e != nil && e.latest.Key == key && e.latest.Verb == events.VerbUpserted
}

// Pause stops [Ledger.Next]. Between the moment a resync's list versions are read and its begin, nothing may be sent: a version above
// them, told before them, would look as if the cluster had gone back.
func (l *Ledger) Pause() { l.paused = true }

// Resume ends a pause.
func (l *Ledger) Resume() { l.paused = false }

// Join begins a full resync whose begin is acknowledged: the objects of the listings are its members, each owed once more in the latest version
// known. What is known, alive and not above the listing of its kind, yet not in it, is gone, whether or not the watch ever tells.
func (l *Ledger) Join(id string, listings []Listed, now time.Time) {
	l.resync, l.outstanding = id, 0
	for _, e := range l.entries {
		e.member = false
	}
	for _, listed := range listings {
		l.floor[listed.Kind] = listed.Version
		for _, s := range listed.Members {
			l.join(s, now)
		}
	}
	for key, e := range l.entries {
		if e.left && !e.member {
			l.forget(e)
			continue
		}
		above := e.latest.newerThan(l.floor[key.kind], events.VerbDeleted)
		if e.member || above || e.latest.Verb == events.VerbDeleted {
			continue
		}
		l.supersede(e, e.latest.gone(now))
		l.schedule(e, now)
	}
}

// Lag is how many objects the listings of a full resync know better than the watch, which is to tell of every version that led there. Nothing lags where only the
// latest version counts, nor does what keeps revisions: a version of it that says nothing new is never told.
func (l *Ledger) Lag(listings []Listed) int {
	if l.bounds.PerObject == 0 {
		return 0
	}
	behind := 0
	versions := make(map[kube.Kind]string)
	listed := make(map[name]bool)
	for _, of := range listings {
		if of.Kind == kube.ReplicaSet || of.Kind == kube.ControllerRevision {
			continue
		}
		versions[of.Kind] = of.Version
		for _, s := range of.Members {
			listed[s.named()] = true
			known := l.highest[s.Kind] // what went before that is gone and forgotten
			if e := l.entries[s.named()]; e != nil {
				known = e.latest.Version
			}
			if s.newerThan(known, events.VerbDeleted) {
				behind++
			}
		}
	}
	for key, e := range l.entries {
		version, of := versions[key.kind]
		if of && !listed[key] && e.latest.Verb == events.VerbUpserted && !e.latest.newerThan(version, events.VerbDeleted) {
			behind++
		}
	}
	return behind
}

// Listed is one kind as a full resync found it.
type Listed struct {
	Kind    kube.Kind
	Version string
	Members []Sighting
}

func (l *Ledger) join(s Sighting, now time.Time) {
	l.raise(s)
	e := l.entries[s.named()]
	if e == nil {
		e = &entry{latest: s}
		l.entries[s.named()] = e
	} else if s.newerThan(e.latest.Version, e.latest.Verb) {
		l.outdo(e, s)
	}
	if !e.member {
		e.member = true
		l.outstanding++
	}
	e.held, e.left = false, false
	l.schedule(e, now)
}

// outdo makes what was listed the latest of its object. Where every version counts nothing comes back that went: it was listed before it went then.
func (l *Ledger) outdo(e *entry, s Sighting) {
	if l.bounds.PerObject == 0 || s.Key != e.latest.Key || e.latest.Verb != events.VerbDeleted || e.latest.Occasion != Missed {
		l.supersede(e, s)
		return
	}
	gone := e.latest
	gone.Version = s.Version
	e.latest = s
	l.supersede(e, gone)
}

// Outstanding is how many members of the running resync are not acknowledged.
func (l *Ledger) Outstanding() int { return l.outstanding }

// Next returns what is to be sent now, and marks it as being sent until [Ledger.Acked], [Ledger.Failed] or [Ledger.Refused]. When there is
// nothing, it returns when a delayed one is due, the zero time if there is none.
func (l *Ledger) Next(now time.Time) (Delivery, time.Time, bool) {
	if l.paused {
		return Delivery{}, time.Time{}, false
	}
	for l.delayed.due(now) {
		l.release(l.delayed.pop(), now)
	}
	for {
		e := l.pop()
		if e == nil {
			return Delivery{}, l.delayed.next(), false
		}
		if e.sending || e.delayed || !e.owed() {
			continue
		}
		e.sending = true
		e.attempts++
		s := e.next()
		baseline := s.UID == e.baseline || s.Occasion == Found
		d := Delivery{Sighting: *s, Attempt: e.attempts, Refused: e.refused == s.Version, FirstSeen: baseline && s.Verb == events.VerbUpserted}
		if e.member && s == &e.latest {
			d.ResyncID = l.resync
		}
		return d, time.Time{}, true
	}
}

func (l *Ledger) pop() *entry {
	if key, ok := l.partials.pop(); ok {
		if e := l.entries[key]; e != nil && e.inPartials {
			e.inPartials = false
			return e
		}
		return l.pop()
	}
	if key, ok := l.members.pop(); ok {
		if e := l.entries[key]; e != nil && e.inMembers {
			e.inMembers = false
			return e
		}
		return l.pop()
	}
	return nil
}

// Acked says that the delivery is stored.
func (l *Ledger) Acked(d Delivery, now time.Time) {
	e := l.entries[d.named()]
	if e == nil {
		return
	}
	e.sending = false
	if e.baseline == d.UID {
		e.baseline = ""
	}
	e.told, e.toldVerb = d.Version, d.Verb
	if len(e.backlog) > 0 && e.backlog[0].Version == d.Version && e.backlog[0].Verb == d.Verb {
		e.backlog = slices.Delete(e.backlog, 0, 1)
		l.waiting--
	} else if e.latest.Version == d.Version {
		e.latest.Occasion, e.latest.Skipped = Changed, 0 // told, should a full resync tell of it again
	}
	if e.member && d.ResyncID == l.resync && d.ResyncID != "" {
		e.member = false
		l.outstanding--
	}
	switch {
	case e.left && !e.member:
		l.forget(e)
	case e.owed():
		e.attempts = 0
		e.owedSinceIsKnown = false
		l.schedule(e, now)
	case e.latest.Verb == events.VerbDeleted:
		l.forget(e)
	default:
		e.owedSinceIsKnown = false
	}
}

// Failed says that the delivery is not known to be stored. Nothing of the object is sent sooner than retry.
func (l *Ledger) Failed(d Delivery, retry time.Time) {
	e := l.entries[d.named()]
	if e == nil {
		return
	}
	e.sending = false
	if e.left && !e.member {
		l.forget(e)
		return
	}
	if !e.owed() {
		return
	}
	e.delayed = true
	l.delayed.push(d.named(), retry)
}

// Refused says that the delivery is too large for the server: of this version, only that fact can be told.
func (l *Ledger) Refused(d Delivery, now time.Time) {
	if e := l.entries[d.named()]; e != nil {
		e.sending = false
		e.refused = d.Version
		l.schedule(e, now)
	}
}

// Hurry makes everything that was delayed due: what made it fail is over.
func (l *Ledger) Hurry(now time.Time) {
	for l.delayed.len() > 0 {
		l.release(l.delayed.pop(), now)
	}
}

func (l *Ledger) release(key name, now time.Time) {
	if e := l.entries[key]; e != nil && e.delayed {
		e.delayed = false
		l.schedule(e, now)
	}
}

// schedule puts an entry that is owed into the queues it belongs to. It is taken out when its turn comes, and looked at again then.
func (l *Ledger) schedule(e *entry, now time.Time) {
	if !e.owed() {
		return
	}
	if !e.owedSinceIsKnown {
		e.since, e.owedSinceIsKnown = now, true
		if len(e.backlog) > 0 {
			e.since = e.backlog[0].SeenAt
		}
	}
	if e.sending || e.delayed {
		return
	}
	if e.changed() && !e.inPartials {
		// A member that has not been told of before waits among the members: a first resync must not hold up what changes.
		if !e.member || e.told != "" || e.baseline == "" {
			e.inPartials = true
			l.partials.push(e.latest.named())
			return
		}
	}
	if e.member && !e.inMembers && !e.inPartials {
		e.inMembers = true
		l.members.push(e.latest.named())
	}
}

// changed tells that the latest version is not the one acknowledged.
func (e *entry) changed() bool {
	return !e.held && (e.latest.Version != e.told || e.latest.Verb != e.toldVerb)
}

func (e *entry) owed() bool { return e.member || e.changed() }

// Size is how many objects are known.
func (l *Ledger) Size() int { return len(l.entries) }

// Backlog is how many objects are owed, those being sent included, and since when the oldest is.
func (l *Ledger) Backlog() (int, time.Time) {
	var owed int
	var oldest time.Time
	for _, e := range l.entries {
		if !e.owed() {
			continue
		}
		owed++
		if oldest.IsZero() || e.since.Before(oldest) {
			oldest = e.since
		}
	}
	return owed, oldest
}

package delivery

import (
	"maps"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// Queue holds, for one pipeline of a leader session, the acknowledged version of each object, the one in flight
// and those to publish. It is not safe for concurrent use.
//
// An initial object existed when the queue was made. It is published with the first full resync, or earlier
// if it changes. The queue does not know what earlier sessions published.
type Queue struct {
	entries map[object.Name]*entry
	changes fifo
	members fifo
	delayed delays
	changed map[*entry]struct{} // those with waiting changes
	highest map[object.Kind]string
	listed  map[object.Kind]string // version of the last list
	bounds  Bounds
	waiting int // versions in all backlogs

	paused      bool
	listing     bool // a full resync lists: keep deleted names, the lists may still show them
	resyncID    string
	resyncBegan time.Time
	outstanding int
}

// entry is the state of one name. There may be 150,000, so it is small.
type entry struct {
	latest   object.Version
	waiting  *waiting // nil if nothing waits but the member of a full resync
	attempts int32    // to publish the version that is first

	acked        bool // the latest version is acknowledged
	initial      bool // the creation of the first object was not observed, and none of its versions is acknowledged
	awaitsResync bool // an initial object that waits for the first resync
	unreported   bool // to remove once its member is published and the version in flight is settled
	repeat       bool // the version in flight may be stored before the begin event of the resync: publish it again
	member       bool // to publish for the running resync

	inFlight  bool
	delayed   bool
	inChanges bool
	inMembers bool
}

// waiting is what a name has while changes of it are not acknowledged.
type waiting struct {
	backlog  backlog   // versions to publish before the latest, of the same object or its predecessors
	since    time.Time // when the oldest version began to wait
	tooLarge string    // resourceVersion that the server refused, empty for none
}

// New makes an empty queue. With zero bounds only the latest version of each object waits.
func New(bounds Bounds) *Queue {
	return &Queue{
		entries: make(map[object.Name]*entry), changed: make(map[*entry]struct{}),
		highest: make(map[object.Kind]string), listed: make(map[object.Kind]string), bounds: bounds,
	}
}

// Add adds a version as its origin demands:
//
//   - An initial one waits for the first full resync.
//   - A missed deletion is ordered after the last known version.
//   - An object that is no longer reported is removed. If it was announced as a member, it is published first.
//   - A version that is not newer than the latest changes nothing. Neither does one that is not newer than
//     the last list of its kind, unless it deletes the known object or has origin Found: the watch lags behind
//     the list, which shows what exists.
func (q *Queue) Add(v object.Version) {
	e := q.entries[v.ObjectName()]
	switch {
	case v.Origin == object.Unreported:
		q.drop(v.Key())
		return
	case v.Origin == object.Initial && e == nil:
		q.raiseHighest(v)
		q.entries[v.ObjectName()] = &entry{latest: v, initial: true, awaitsResync: true}
		return
	case v.Origin == object.Missed && e != nil && e.latest.Key() == v.Key():
		v.ResourceVersion = object.Higher(v.ResourceVersion, e.latest.ResourceVersion)
	}
	q.observe(v)
}

func (q *Queue) observe(v object.Version) {
	q.raiseHighest(v)
	e := q.entries[v.ObjectName()]
	current := v.Origin == object.Found || v.NewerThan(q.listed[v.Kind], events.VerbDeleted)
	if e != nil {
		e.unreported = false
	}
	switch {
	case e == nil && current:
		e = &entry{latest: v, initial: v.Origin == object.Found}
		q.entries[v.ObjectName()] = e
	case e == nil:
		return
	case v.NewerThan(e.latest.ResourceVersion, e.latest.Verb) &&
		(current || v.Verb == events.VerbDeleted && v.Key() == e.latest.Key()):
		q.supersede(e, v)
	case v.ResourceVersion == e.latest.ResourceVersion && v.Verb == e.latest.Verb:
		e.latest.Object = v.Object // the copy that the watch holds
	}
	q.schedule(e, v.ObservedAt)
}

func (q *Queue) drop(key object.Key) {
	e := q.entries[key.ObjectName()]
	switch {
	case e == nil || e.latest.Key() != key:
	case e.member || e.inFlight:
		e.unreported = true
	default:
		q.forget(e)
	}
}

// forget removes the latest object of a name. Unpublished versions of its predecessors stay.
func (q *Queue) forget(e *entry) {
	if e.waiting != nil {
		q.waiting -= e.waiting.backlog.remove(e.latest.Key())
	}
	n := len(e.backlog())
	if n == 0 {
		delete(q.entries, e.latest.ObjectName())
		delete(q.changed, e)
		e.inChanges, e.inMembers, e.delayed = false, false, false
		return
	}
	e.latest, e.acked, e.unreported = e.waiting.backlog[n-1], false, false
	e.waiting.backlog = e.waiting.backlog[:n-1]
	q.waiting--
}

// raiseHighest raises the highest known version of a kind.
func (q *Queue) raiseHighest(v object.Version) {
	q.highest[v.Kind] = object.Higher(v.ResourceVersion, q.highest[v.Kind])
}

// supersede makes a version the latest of its name. If the former latest version is not acknowledged, it joins
// the backlog when the queue has bounds or when it is the deletion of a predecessor.
func (q *Queue) supersede(e *entry, v object.Version) {
	replaced := v.Key() != e.latest.Key()
	if replaced && e.latest.Verb != events.VerbDeleted {
		q.supersede(e, e.latest.MissedDeletion(v.ObservedAt))
	}
	switch {
	case !e.awaitsResync && !e.changed():
	case q.bounds.PerName > 0:
		q.waiting += q.wait(e).backlog.push(e.latest, &v, e.inFlight, q.bounds, q.bounds.Total-q.waiting)
	case replaced:
		w := q.wait(e)
		w.backlog = append(w.backlog, e.latest)
		q.waiting++
	}
	e.latest, e.acked, e.awaitsResync = v, false, false
	if len(e.backlog()) == 0 {
		e.attempts = 0
	}
}

// wait returns e.waiting, which it makes if it is nil.
func (q *Queue) wait(e *entry) *waiting {
	if e.waiting == nil {
		e.waiting = &waiting{}
		q.changed[e] = struct{}{}
	}
	return e.waiting
}

// backlog returns the versions to publish before the latest.
func (e *entry) backlog() backlog {
	if e.waiting == nil {
		return nil
	}
	return e.waiting.backlog
}

// next returns the version of an entry to publish next.
func (e *entry) next() *object.Version {
	if earlier := e.backlog(); len(earlier) > 0 {
		return &earlier[0]
	}
	return &e.latest
}

// Highest returns the highest known resourceVersion of a kind.
func (q *Queue) Highest(kind object.Kind) string { return q.highest[kind] }

// Held returns the object if its latest known version is this one, else nil.
func (q *Queue) Held(key object.Key, resourceVersion string) object.Object {
	e := q.entries[key.ObjectName()]
	if e != nil && e.latest.Key() == key && e.latest.ResourceVersion == resourceVersion &&
		e.latest.Verb == events.VerbUpserted {
		return e.latest.Object
	}
	return nil
}

// Exists reports whether an object is known and not deleted.
func (q *Queue) Exists(key object.Key) bool {
	e := q.entries[key.ObjectName()]
	return e != nil && e.latest.Key() == key && e.latest.Verb == events.VerbUpserted
}

// IsAcked reports whether the latest version of its name is this one, and is acknowledged.
func (q *Queue) IsAcked(key object.Key, resourceVersion string) bool {
	e := q.entries[key.ObjectName()]
	return e != nil && e.latest.Key() == key && e.latest.ResourceVersion == resourceVersion && e.acked
}

// BeginList begins the list of a full resync. Deletions meanwhile are remembered until [Queue.StartResync] or
// [Queue.EndList], since the list may show the deleted objects. With bounds it also pauses the queue: a reader may
// ignore a version that is published before the begin event, as a version of another cluster. [Queue.StartResync]
// publishes such a version again only without bounds.
func (q *Queue) BeginList() { q.listing, q.paused = true, q.bounds.PerName > 0 }

// Pause stops [Queue.Next] while the begin event of a resync is published. That event has the highest known
// versions. A higher version published meanwhile would look like a restored cluster.
func (q *Queue) Pause() { q.paused = true }

// EndList ends a list that is not followed by [Queue.StartResync], and every pause.
func (q *Queue) EndList() {
	q.paused, q.listing = false, false
	for _, e := range q.entries {
		q.forgetDeleted(e)
	}
}

// forgetDeleted forgets a name whose deletion is published.
func (q *Queue) forgetDeleted(e *entry) {
	if e.latest.Verb == events.VerbDeleted && !e.pending() && !e.inFlight && !q.listing {
		q.forget(e)
	}
}

// KnownVersions returns the highest known version of each kind. While the queue is paused, no higher one is published.
func (q *Queue) KnownVersions() map[object.Kind]string { return maps.Clone(q.highest) }

// Next returns the change to publish now and marks it as in flight until [Queue.Acked], [Queue.Failed] or
// [Queue.TooLarge]. If there is none, it returns when a delayed version is due, zero for never.
func (q *Queue) Next(now time.Time) (Delivery, time.Time, bool) {
	if q.paused {
		return Delivery{}, time.Time{}, false
	}
	for q.delayed.due(now) {
		q.release(q.delayed.pop(), now)
	}
	for e := q.changes.pop(); e != nil; e = q.changes.pop() {
		if !e.inChanges {
			continue // forgotten since it was pushed
		}
		e.inChanges = false
		if e.ready() {
			return q.deliver(e), time.Time{}, true
		}
	}
	return Delivery{}, q.delayed.next(), false
}

// Members returns up to limit members of the running full resync to publish now, and marks each as in flight as
// [Queue.Next] does. A delivery without a resync id is an earlier version of the member's name.
func (q *Queue) Members(limit int) []Delivery {
	if q.paused {
		return nil
	}
	var members []Delivery
	for len(members) < limit {
		e := q.members.pop()
		if e == nil {
			break
		}
		if !e.inMembers {
			continue // forgotten since it was pushed
		}
		e.inMembers = false
		if e.ready() {
			members = append(members, q.deliver(e))
		}
	}
	return members
}

// ready reports whether a version can be published now.
func (e *entry) ready() bool { return !e.inFlight && !e.delayed && e.pending() }

// deliver marks the next version of an entry as in flight.
func (q *Queue) deliver(e *entry) Delivery {
	e.inFlight = true
	e.attempts++
	v := e.next()
	d := Delivery{
		Version: *v, Attempt: int(e.attempts),
		FirstSeen: v.Verb == events.VerbUpserted && (e.initial || v.Origin == object.Found),
		TooLarge:  e.waiting != nil && e.waiting.tooLarge == v.ResourceVersion,
	}
	if e.member && v == &e.latest {
		d.ResyncID = q.resyncID
	}
	return d
}

// Acked records that the stream stored the delivery.
func (q *Queue) Acked(d Delivery, now time.Time) {
	e := q.entries[d.ObjectName()]
	if e == nil {
		return
	}
	e.inFlight, e.initial, e.attempts = false, false, 0
	e.acked = e.latest.ResourceVersion == d.ResourceVersion && e.latest.Verb == d.Verb && !e.repeat
	e.repeat = false
	if earlier := e.backlog(); earlier.startsWith(d.Version) {
		e.waiting.backlog.shift()
		q.waiting--
	} else if e.latest.ResourceVersion == d.ResourceVersion {
		e.latest.Origin, e.latest.Skipped = object.Changed, 0 // a full resync may publish it again
	}
	if e.member && d.ResyncID == q.resyncID && d.ResyncID != "" {
		e.member = false
		q.outstanding--
	}
	if len(e.backlog()) == 0 {
		e.waiting = nil
		delete(q.changed, e)
	} else {
		e.waiting.since = time.Time{}
	}
	switch {
	case e.unreported && !e.member:
		q.forget(e)
	case e.pending():
		q.schedule(e, now)
	default:
		q.forgetDeleted(e)
	}
}

// Failed records that the delivery was not acknowledged. The stream may have stored it. The name is not published again
// before retry.
func (q *Queue) Failed(d Delivery, retry time.Time) {
	e := q.entries[d.ObjectName()]
	if e == nil {
		return
	}
	e.inFlight = false
	if e.unreported && !e.member {
		q.forget(e)
		return
	}
	if e.pending() {
		e.delayed = true
		q.delayed.push(e, retry)
	}
}

// TooLarge records that the server refused the delivery for its size.
func (q *Queue) TooLarge(d Delivery, now time.Time) {
	if e := q.entries[d.ObjectName()]; e != nil {
		e.inFlight = false
		q.wait(e).tooLarge = d.ResourceVersion
		q.schedule(e, now)
	}
}

// RetryNow makes all delayed versions due.
func (q *Queue) RetryNow(now time.Time) {
	for q.delayed.len() > 0 {
		q.release(q.delayed.pop(), now)
	}
}

func (q *Queue) release(e *entry, now time.Time) {
	if e.delayed {
		e.delayed = false
		q.schedule(e, now)
	}
}

// schedule puts a pending entry into its FIFO. [Queue.Next] checks it again when it takes it out.
func (q *Queue) schedule(e *entry, now time.Time) {
	if !e.pending() {
		return
	}
	// An initial object that is a member is not a change: it is published after all changes.
	isChange := e.changed() && (!e.member || !e.initial)
	if isChange && q.wait(e).since.IsZero() {
		e.waiting.since = now
		if len(e.waiting.backlog) > 0 {
			e.waiting.since = e.waiting.backlog[0].ObservedAt
		}
	}
	switch {
	case e.inFlight || e.delayed || e.inChanges:
	case isChange:
		e.inChanges = true
		q.changes.push(e)
	case e.member && !e.inMembers:
		e.inMembers = true
		q.members.push(e)
	}
}

// changed reports whether a version is not acknowledged, and need not be a member of the first full resync.
func (e *entry) changed() bool { return !e.awaitsResync && !e.acked }

func (e *entry) pending() bool { return e.member || e.changed() }

// Len returns the number of known names.
func (q *Queue) Len() int { return len(q.entries) }

// Pending returns the number of names with a version to publish or in flight, and since when the oldest
// waits. It reads only those with changes: it is called every second, and there may be 150,000 names.
func (q *Queue) Pending() (int, time.Time) {
	pending := q.outstanding
	var oldest time.Time
	if pending > 0 {
		oldest = q.resyncBegan
	}
	for e := range q.changed {
		if !e.pending() {
			continue
		}
		if !e.member {
			pending++
		}
		if oldest.IsZero() || e.waiting.since.Before(oldest) {
			oldest = e.waiting.since
		}
	}
	return pending, oldest
}

package delivery

import (
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// StartResync starts a full resync whose begin event is stored, and ends the pause. Every listed object is a member.
// Its latest known version is published once more, even if it is newer than the list or a deletion. A known object
// that is not listed, and whose version is not above the list's, gets a missed deletion. Without bounds, one above it
// is published again: it may have been published before the begin event, and a reader may have ignored it as a version
// of another cluster.
func (q *Queue) StartResync(id string, lists []object.List, now time.Time) {
	interrupted := q.outstanding > 0
	q.resyncID, q.resyncBegan, q.outstanding = id, now, 0
	q.paused, q.listing = false, false
	if interrupted {
		for _, e := range q.entries {
			e.member = false
		}
	}
	for _, list := range lists {
		q.listed[list.Kind] = list.ResourceVersion
		for _, o := range list.Objects {
			q.addMember(list.Version(o), now)
		}
	}
	if q.outstanding == len(q.entries) {
		return // all known objects are members
	}
	for name, e := range q.entries {
		if e.unreported && !e.member {
			q.forget(e)
			continue
		}
		above := e.latest.NewerThan(q.listed[name.Kind], events.VerbDeleted)
		switch {
		case e.member:
		case e.latest.Verb == events.VerbDeleted:
			q.forgetDeleted(e)
		case above && q.bounds.PerName == 0:
			q.publishAgain(e, now)
		case !above:
			q.supersede(e, e.latest.MissedDeletion(now))
			q.schedule(e, now)
		}
	}
}

func (q *Queue) publishAgain(e *entry, now time.Time) {
	if e.inFlight {
		e.repeat = true
		return
	}
	e.acked = false
	q.schedule(e, now)
}

// addMember makes a listed object a member of the running resync.
func (q *Queue) addMember(v object.Version, now time.Time) {
	e := q.entries[v.ObjectName()]
	if e == nil {
		q.raiseHighest(v)
		e = &entry{latest: v}
		q.entries[v.ObjectName()] = e
	} else if v.NewerThan(e.latest.ResourceVersion, e.latest.Verb) {
		q.raiseHighest(v)
		q.supersedeByList(e, v)
	}
	if !e.member {
		e.member = true
		q.outstanding++
	}
	e.awaitsResync, e.unreported = false, false
	q.schedule(e, now)
}

// supersedeByList makes a listed version the latest of its name. With bounds, a missed deletion of a listed object
// counts as later than the list.
func (q *Queue) supersedeByList(e *entry, v object.Version) {
	missed := e.latest.Verb == events.VerbDeleted && e.latest.Origin == object.Missed
	if q.bounds.PerName == 0 || v.Key() != e.latest.Key() || !missed {
		q.supersede(e, v)
		return
	}
	deletion := e.latest
	deletion.ResourceVersion = v.ResourceVersion
	e.latest = v
	q.supersede(e, deletion)
}

// Outstanding returns the number of members of the running resync that are not acknowledged.
func (q *Queue) Outstanding() int { return q.outstanding }

// Behind returns the number of listed objects that the watch has not reported in their listed version.
// It is zero without bounds, since only the latest version counts. Revisions do not count: a version of
// a revision with equal content is never published.
func (q *Queue) Behind(lists []object.List) int {
	if q.bounds.PerName == 0 {
		return 0
	}
	behind := 0
	versions := make(map[object.Kind]string)
	listed := make(map[object.Name]bool)
	for _, list := range lists {
		if list.Kind == object.ReplicaSet || list.Kind == object.ControllerRevision {
			continue
		}
		versions[list.Kind] = list.ResourceVersion
		for _, o := range list.Objects {
			v := list.Version(o)
			listed[v.ObjectName()] = true
			known := q.highest[v.Kind] // not in the queue: deleted and forgotten, or not reported yet
			if e := q.entries[v.ObjectName()]; e != nil {
				known = e.latest.ResourceVersion
			}
			if v.NewerThan(known, events.VerbDeleted) {
				behind++
			}
		}
	}
	for name, e := range q.entries {
		version, counts := versions[name.Kind]
		if counts && !listed[name] && e.latest.Verb == events.VerbUpserted &&
			!e.latest.NewerThan(version, events.VerbDeleted) {
			behind++
		}
	}
	return behind
}

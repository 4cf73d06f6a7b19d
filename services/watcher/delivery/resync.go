package delivery

import (
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
)

// StartResync starts a full resync whose begin is stored. Every listed object is a member: its latest
// known version is published once more, which may be a later one or its deletion. An object that is
// known, not listed and not above the list of its kind is deleted.
func (q *Queue) StartResync(id string, lists []object.List, now time.Time) {
	q.resyncID, q.outstanding = id, 0
	for _, e := range q.entries {
		e.member = false
	}
	for _, list := range lists {
		q.listed[list.Kind] = list.ResourceVersion
		for _, o := range list.Objects {
			q.join(list.Version(o), now)
		}
	}
	for name, e := range q.entries {
		if e.left && !e.member {
			q.forget(e)
			continue
		}
		above := e.latest.NewerThan(q.listed[name.Kind], events.VerbDeleted)
		if e.member || above || e.latest.Verb == events.VerbDeleted {
			continue
		}
		q.supersede(e, e.latest.MissedDeletion(now))
		q.schedule(e, now)
	}
}

func (q *Queue) join(v object.Version, now time.Time) {
	q.raise(v)
	e := q.entries[v.ObjectName()]
	if e == nil {
		e = &entry{latest: v}
		q.entries[v.ObjectName()] = e
	} else if v.NewerThan(e.latest.ResourceVersion, e.latest.Verb) {
		q.supersedeByList(e, v)
	}
	if !e.member {
		e.member = true
		q.outstanding++
	}
	e.held, e.left = false, false
	q.schedule(e, now)
}

// supersedeByList makes a listed version the latest of its name. With bounds, a missed deletion of the
// same object happened after it was listed.
func (q *Queue) supersedeByList(e *entry, v object.Version) {
	missed := e.latest.Verb == events.VerbDeleted && e.latest.Origin == object.Missed
	if q.bounds.PerName == 0 || v.Key != e.latest.Key || !missed {
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
			known := q.highest[v.Kind] // of an object that was deleted and forgotten
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

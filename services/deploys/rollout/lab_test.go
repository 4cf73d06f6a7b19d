package rollout_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// lab plays the API server, the controllers and a watcher of one workload, and feeds what the watcher tells to Advance. Nothing happens by itself.
type lab struct {
	t    testing.TB
	rng  *rand.Rand
	kind string
	now  time.Time
	rv   int
	uids int

	down    bool // the watcher tells nothing
	outages []outage
	held    bool // told is kept back, to be delivered in another order
	backlog []rollout.Input
	log     []rollout.Input // what was delivered
	agent   int64           // that tells; 7 when it is none
	state   rollout.State
	facts   []events.DeployFact

	truth []*truth
	// erased are objects of which a ReplicaSet was deleted by hand while the watcher was down: the revisions that it had, and those that took its number, may
	// leave nothing.
	erased map[string]bool
	plays  player
}

// outage of the watcher.
type outage struct{ from, until time.Time }

// player is the workload and its controller.
type player interface {
	// everything that exists now, the workload first.
	relist() []rollout.Input
	exists() bool
	step()
}

// truth is what really became of one revision.
type truth struct {
	id       string
	revision int
	hash     string
	known    bool // by its number, its pods or its verdict the workload itself shows it
	end      events.Fact
}

var epoch = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

func newLab(t testing.TB, kind string, seed uint64) *lab {
	l := &lab{t: t, kind: kind, rng: rand.New(rand.NewPCG(seed, 7)), now: epoch, rv: 100, erased: map[string]bool{}}
	l.state = rollout.New(rollout.Key{ClusterUID: "cluster", Namespace: "shop", Kind: kind, Name: "web"})
	return l
}

func (l *lab) uid(prefix string) string {
	l.uids++
	return prefix + strconv.Itoa(l.uids)
}

func (l *lab) second() time.Time { return l.now.Truncate(time.Second) }

func (l *lab) meta(name, uid string, created time.Time, verb events.Verb) events.ObjectMeta {
	l.rv++
	return events.ObjectMeta{
		ClusterUID: "cluster", Namespace: "shop", Name: name, UID: uid, ResourceVersion: strconv.Itoa(l.rv), Verb: verb,
		UpdateType: events.UpdateTypePartial, ObservedAt: l.now, CreatedAt: &created,
	}
}

// tell is the watcher, which sees the object now.
func (l *lab) tell(in rollout.Input) {
	in.AgentID, in.ObservedAt = cmp.Or(l.agent, 7), l.now
	switch {
	case l.down:
	case l.held:
		l.backlog = append(l.backlog, in)
	default:
		l.deliver(in)
	}
}

func (l *lab) deliver(in rollout.Input) {
	l.log = append(l.log, in)
	sampled := len(l.log)%8 == 0 // the checks cost far more than what they check
	var before string
	if sampled {
		before = encode(l.t, l.state)
	}
	next, facts := rollout.Advance(l.state, in)
	if sampled {
		require.Equal(l.t, before, encode(l.t, l.state), "the state given was changed")
	}
	if len(facts) > 0 {
		require.Greater(l.t, next.Serial, l.state.Serial)
	}
	l.state = next
	for _, f := range facts {
		f = again(l.t, f)
		require.Equal(l.t, len(l.facts)+1, f.Sequence)
		l.facts = append(l.facts, f)
	}
}

func (l *lab) tick() {
	l.tell(rollout.Input{})
}

// wait lets time pass, with the watcher's ticks.
func (l *lab) wait(d time.Duration) {
	for ; d > 0; d -= 15 * time.Second {
		l.now = l.now.Add(min(d, 15*time.Second))
		l.tick()
	}
}

// stop the watcher; start tells everything again, as one that has just begun.
func (l *lab) stop() {
	if !l.down {
		l.outages = append(l.outages, outage{from: l.now})
	}
	l.down = true
}

func (l *lab) start() {
	l.now = l.now.Add(time.Second) // it takes a moment
	if n := len(l.outages); n > 0 {
		l.outages[n-1].until = l.now
	}
	l.down = false
	l.resync(true)
}

// resync tells everything; the versions are the ones they are.
func (l *lab) resync(first bool) {
	members := []rollout.Input{}
	if l.plays.exists() {
		members = l.plays.relist()
	}
	l.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	for _, in := range members {
		in.KnownBefore = true
		if in.Workload != nil {
			in.Workload.Object.FirstSeen, in.Workload.Object.UpdateType = first, events.UpdateTypeFull
			in.Workload.Object.ObservedAt = l.now
		} else {
			in.Revision.Object.FirstSeen, in.Revision.Object.UpdateType = first, events.UpdateTypeFull
			in.Revision.Object.ObservedAt = l.now
		}
		l.tell(in)
	}
	if !l.plays.exists() {
		l.tell(rollout.Input{Absence: &rollout.Absence{ListVersion: strconv.Itoa(l.rv)}})
	}
}

// run lets the controllers and kubelets work until nothing is left to do.
func (l *lab) run() {
	for range 200 {
		before := l.rv
		for range 3 {
			l.now = l.now.Add(100 * time.Millisecond)
			l.plays.step()
		}
		if l.rv == before {
			return
		}
	}
	l.t.Fatal("the controllers do not come to rest")
}

// began is called when a controller makes, or bumps, a revision.
func (l *lab) began(id string, revision int, hash string) {
	if n := len(l.truth); n > 0 && l.truth[n-1].end == "" {
		l.truth[n-1].end = events.FactSuperseded
		for i := n - 1; i >= 0 && uidOf(l.truth[i].id) == uidOf(id); i-- {
			if l.truth[i].end == events.FactCompleted {
				if l.truth[i].hash == hash {
					l.truth[n-1].end = events.FactCancelled
				}
				break
			}
		}
	}
	l.truth = append(l.truth, &truth{id: id, revision: revision, hash: hash})
}

func (l *lab) newest() *truth { return l.truth[len(l.truth)-1] }

// said are the facts, as name and revision, without those that only count.
func (l *lab) said() []string {
	said := []string{}
	for _, f := range l.facts {
		switch {
		case f.Fact == events.FactProgressed || f.Fact == events.FactDrained:
		case f.Rollout != nil:
			said = append(said, fmt.Sprintf("%s %d", f.Fact, f.Rollout.Revision))
		case f.Scale != nil:
			said = append(said, fmt.Sprintf("%s %d→%d", f.Fact, f.Scale.From, f.Scale.To))
		case f.Gap != nil:
			said = append(said, fmt.Sprintf("%s %v", f.Fact, f.Gap.Revisions))
		default:
			said = append(said, string(f.Fact))
		}
	}
	return said
}

// hush forgets what was said.
func (l *lab) mark() int { return len(l.said()) }

// next are the facts since the mark.
func (l *lab) since(mark int) []string { return l.said()[mark:] }

// last fact of a name.
func (l *lab) last(fact events.Fact) events.DeployFact {
	for _, v := range slices.Backward(l.facts) {
		if v.Fact == fact {
			return v
		}
	}
	l.t.Fatalf("no %s among %v", fact, l.said())
	return events.DeployFact{}
}

func encode(t testing.TB, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// again is the fact as its readers get it, valid by its schema.
func again(t testing.TB, f events.DeployFact) events.DeployFact {
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeDeployFact, raw))
	var back events.DeployFact
	require.NoError(t, json.Unmarshal(raw, &back))
	return back
}

//go:fix inline

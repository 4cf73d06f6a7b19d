package detection

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// Verdict says how a fact stands between what detection says and what was published.
type Verdict string

const (
	// Same was published as it is.
	Same Verdict = "same"
	// Changed was published, and said something else.
	Changed Verdict = "changed"
	// Missing was not published.
	Missing Verdict = "missing"
	// Extra was published, and detection does not say it.
	Extra Verdict = "extra"
)

// Mark is the verdict in one character.
func (v Verdict) Mark() string {
	switch v {
	case Changed:
		return "~"
	case Missing:
		return "+"
	case Extra:
		return "-"
	case Same:
	}
	return " "
}

// Compared is a fact and its verdict. Of Changed it is what detection says, with the names of the
// fields that differ.
type Compared struct {
	Verdict Verdict           `json:"verdict"`
	ID      string            `json:"id"`
	Fact    events.DeployFact `json:"fact"`
	Fields  []string          `json:"fields,omitempty"`
}

// happening is what a fact says happened, whatever its number.
type happening struct {
	key              rollout.Key
	uid              string
	fact             events.Fact
	rollout, group   string
	occurred, marked time.Time
}

func happeningOf(f *events.DeployFact) happening {
	w := f.Workload
	h := happening{
		key: rollout.Key{ClusterUID: w.ClusterUID, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name}, uid: w.UID,
		fact: f.Fact, occurred: f.OccurredAt.UTC().Round(0), marked: f.ObservedAt.UTC().Round(0),
	}
	if f.Rollout != nil {
		h.rollout = f.Rollout.ID
	}
	if f.Environment != nil {
		h.group = f.Environment.Run
	}
	return h
}

// Compare pairs what detection says with what was published. Facts come in the order of the two
// together: by when they were observed, those of a workload in their own order. partial says that
// detection began later than the stream: numbers, and ids that are made of them, are then not
// compared.
func Compare(said, published []events.DeployFact, partial bool) []Compared {
	byID, byHappening := map[string]int{}, map[happening][]int{}
	for i := range published {
		byID[rollout.ID(published[i])] = i
		h := happeningOf(&published[i])
		byHappening[h] = append(byHappening[h], i)
	}
	paired := make([]bool, len(published))
	find := func(f *events.DeployFact, id string) (int, bool) {
		if i, found := byID[id]; found && !paired[i] {
			return i, true
		}
		if partial {
			for _, i := range byHappening[happeningOf(f)] {
				if !paired[i] {
					return i, true
				}
			}
		}
		return 0, false
	}
	out := make([]Compared, 0, len(said))
	for i := range said {
		c := Compared{Verdict: Missing, ID: rollout.ID(said[i]), Fact: said[i]}
		if at, found := find(&said[i], c.ID); found {
			paired[at] = true
			c.Verdict = Same
			if c.Fields = differing(&said[i], &published[at], partial); len(c.Fields) > 0 {
				c.Verdict = Changed
			}
		}
		out = append(out, c)
	}
	for i := range published {
		if !paired[i] {
			out = append(out, Compared{Verdict: Extra, ID: rollout.ID(published[i]), Fact: published[i]})
		}
	}
	slices.SortStableFunc(out, func(a, b Compared) int { return a.Fact.ObservedAt.Compare(b.Fact.ObservedAt) })
	return out
}

// differing are the names of the fields of two facts that are not the same, as they are on the wire.
func differing(a, b *events.DeployFact, partial bool) []string {
	x, y := fields(a), fields(b)
	var names []string
	for name := range x {
		if !reflect.DeepEqual(x[name], y[name]) {
			names = append(names, name)
		}
	}
	for name := range y {
		if _, there := x[name]; !there {
			names = append(names, name)
		}
	}
	if partial {
		names = slices.DeleteFunc(names, func(name string) bool { return name == "sequence" || name == "ordinal" })
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

func fields(f *events.DeployFact) map[string]any {
	raw, err := json.Marshal(f)
	if err != nil {
		return nil
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil
	}
	return out
}

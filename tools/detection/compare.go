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

// Verdict is the result of the comparison of one fact.
type Verdict string

const (
	// Same is detected and published with the same fields.
	Same Verdict = "same"
	// Changed is detected and published with different fields.
	Changed Verdict = "changed"
	// Missing is detected and not published.
	Missing Verdict = "missing"
	// Extra is published and not detected.
	Extra Verdict = "extra"
)

// Mark returns the verdict as one character.
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

// Compared is a fact and its verdict.
type Compared struct {
	Verdict Verdict `json:"verdict"`
	ID      string  `json:"id"`
	// Fact is the detected fact; the published one for [Extra].
	Fact events.DeployFact `json:"fact"`
	// Fields are the names of the fields that differ.
	Fields []string `json:"fields,omitempty"`
}

// identity identifies a fact without its number.
type identity struct {
	key                rollout.Key
	uid                string
	fact               events.Fact
	rollout, run       string
	occurred, observed time.Time
}

func identityOf(f *events.DeployFact) identity {
	w := f.Workload
	i := identity{
		key: rollout.Key{ClusterUID: w.ClusterUID, Namespace: w.Namespace, Kind: w.Kind, Name: w.Name}, uid: w.UID,
		fact: f.Fact, occurred: f.OccurredAt.UTC().Round(0), observed: f.ObservedAt.UTC().Round(0),
	}
	if f.Rollout != nil {
		i.rollout = f.Rollout.ID
	}
	if f.Environment != nil {
		i.run = f.Environment.Run
	}
	return i
}

// Compare pairs detected with published facts. The result is ordered by the time of the observation; the facts of a
// workload keep their order. If the detection is partial, the numbers of facts, and ids made of them, are not compared.
func Compare(detected, published []events.DeployFact, partial bool) []Compared {
	byID, byIdentity := map[string]int{}, map[identity][]int{}
	for i := range published {
		byID[rollout.ID(published[i])] = i
		key := identityOf(&published[i])
		byIdentity[key] = append(byIdentity[key], i)
	}
	paired := make([]bool, len(published))
	find := func(f *events.DeployFact, id string) (int, bool) {
		if i, found := byID[id]; found && !paired[i] {
			return i, true
		}
		if partial {
			for _, i := range byIdentity[identityOf(f)] {
				if !paired[i] {
					return i, true
				}
			}
		}
		return 0, false
	}
	out := make([]Compared, 0, len(detected))
	for i := range detected {
		c := Compared{Verdict: Missing, ID: rollout.ID(detected[i]), Fact: detected[i]}
		if at, found := find(&detected[i], c.ID); found {
			paired[at] = true
			c.Verdict = Same
			if c.Fields = differences(&detected[i], &published[at], partial); len(c.Fields) > 0 {
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

// differences returns the JSON names of the fields that differ.
func differences(a, b *events.DeployFact, partial bool) []string {
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

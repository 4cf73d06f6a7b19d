package sink

import (
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
)

// View holds the fields of a fact for templates. Operators use their names in templates. Whole is the complete fact.
type View struct {
	Fact       string // such as completed
	Cluster    string // UID
	Agent      int64
	Namespace  string
	Kind       string // deployment, statefulset, daemonset or group
	Name       string
	Labels     map[string]string
	Annotation map[string]string

	Rollout  string // id; empty for a fact without a rollout
	Revision int64
	Change   string // created, updated, rolled_back or restarted
	Strategy string
	Images   []string
	Previous []string // images before

	// Numbers of pods: desired, of the new template, and available.
	Desired, Updated, Available int

	Reason, Message string
	Occurred        time.Time
	Observed        time.Time
	Started         time.Time     // zero if unknown
	Duration        time.Duration // 0 if the fact has none
	Reconstructed   bool          // derived later, not observed

	// Fields of an environment.
	Group, Run string
	URL        URL
	Members    []string // namespace/name of the workloads

	// Fields of a message that is edited.
	Ready   string // run of the environment that became ready last
	Drained bool   // the old pods have terminated

	Owner, Repository, Commit string // as the sink's Finder returns them; Repository is owner/name

	Whole events.DeployFact
}

// URL is a valid absolute http or https URL, or empty. A template writes it as a link.
type URL string

// NewURL returns the URL, or "" if it is not valid.
func NewURL(text string) URL { return URL(environment.WebURL(text)) }

// NewView returns the view of a fact and its source.
func NewView(f events.DeployFact, s Source) View {
	w := f.Workload
	v := View{
		Fact: string(f.Fact), Cluster: w.ClusterUID, Agent: int64(w.AgentID),
		Namespace: w.Namespace, Kind: w.Kind, Name: w.Name,
		Labels: orEmpty(w.Labels), Annotation: orEmpty(w.Annotations), Images: []string{},
		Reason: f.Reason, Message: f.Message, Occurred: f.OccurredAt, Observed: f.ObservedAt,
		Reconstructed: f.Provenance == events.ProvenanceReconstructed,
		Owner:         s.Owner, Repository: s.Repository(), Commit: s.Commit, Whole: f,
	}
	if r := f.Rollout; r != nil {
		v.Rollout, v.Revision, v.Change, v.Strategy = r.ID, int64(r.Revision), string(r.Change), r.Strategy
		v.Images, v.Previous = names(r.Images), names(r.PreviousImages)
		switch {
		case r.StartedObservedAt != nil:
			v.Started = *r.StartedObservedAt
		case r.StartedAt != nil:
			v.Started = *r.StartedAt
		}
	}
	if c := f.Counts; c != nil {
		v.Desired, v.Updated, v.Available = c.Desired, c.Updated, c.Available
	}
	if f.DurationMs != nil {
		v.Duration = time.Duration(*f.DurationMs) * time.Millisecond
	}
	if e := f.Environment; e != nil {
		v.Group, v.Run, v.URL = e.Group, e.Run, NewURL(e.Url)
		for _, m := range e.Members {
			v.Members = append(v.Members, m.Namespace+"/"+m.Name)
		}
	}
	return v
}

func names(images []events.Image) []string {
	list := make([]string, 0, len(images))
	for _, i := range images {
		list = append(list, i.Image)
	}
	return list
}

// Title returns the fact as words: "rolled back" for rolled_back.
func (v View) Title() string { return strings.ReplaceAll(v.Fact, "_", " ") }

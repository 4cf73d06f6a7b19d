package rollout

import (
	"maps"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// Strategies that matter here.
const (
	recreate = "Recreate"
	onDelete = "OnDelete"
)

// View is what is kept of one observation of a workload.
type View struct {
	UID       string    `json:"uid"`
	Version   string    `json:"version,omitempty"`
	At        time.Time `json:"at"`
	CreatedAt time.Time `json:"created_at,omitzero"`

	// First, Skipped and Restored say that something may have happened unseen before it: the watcher had not seen the workload, had to leave out
	// versions, or the cluster's store was restored.
	First    bool `json:"first,omitempty"`
	Skipped  bool `json:"skipped,omitempty"`
	Restored bool `json:"restored,omitempty"`
	// Known says that the workload would have been known if it had been there and selected.
	Known bool `json:"known,omitempty"`
	// Heard says that what keeps the newest revision was told since nobody looked.
	Heard bool `json:"heard,omitempty"`

	// Deleted, with DeletedAt where that is known; Absent when a full resync lacked it. Unselected when it is only not followed any more.
	Deleted    bool      `json:"deleted,omitempty"`
	DeletedAt  time.Time `json:"deleted_at,omitzero"`
	Absent     bool      `json:"absent,omitempty"`
	Unselected bool      `json:"unselected,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	Generation int       `json:"generation,omitempty"`
	Observed   int       `json:"observed,omitempty"`
	Paused     bool      `json:"paused,omitempty"`
	Strategy   string    `json:"strategy,omitempty"`
	Partition  int       `json:"partition,omitempty"`
	Deadline   *int      `json:"deadline,omitempty"`
	MinReady   int       `json:"min_ready,omitempty"`
	Template   Template  `json:"template"`
	Revision   int       `json:"revision,omitempty"`
	Current    string    `json:"current,omitempty"`
	Update     string    `json:"update,omitempty"`
	Counts     Counts    `json:"counts"`
	Progress   Condition `json:"progress,omitzero"`
	Failure    Condition `json:"failure,omitzero"`
}

// Counts of pods.
type Counts = events.Counts

// Condition is what is kept of a condition.
type Condition struct {
	Status  string    `json:"status,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// Reasons of conditions.
const (
	reasonAvailable   = "NewReplicaSetAvailable"
	reasonUpdated     = "ReplicaSetUpdated"
	reasonDeadline    = "ProgressDeadlineExceeded"
	reasonCreateError = "ReplicaSetCreateError"
)

// names says that the condition's message names the object.
func (c Condition) names(name string) bool {
	return name != "" && strings.Contains(c.Message, `"`+name+`"`)
}

// object that the message names first.
func (c Condition) object() string {
	_, rest, _ := strings.Cut(c.Message, `"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// viewOf is pure: what the observation says, whoever it came from.
func viewOf(in Input) View {
	w := in.Workload
	v := View{
		UID: w.Object.UID, Version: w.Object.ResourceVersion, At: clean(in.ObservedAt), CreatedAt: cleanPointer(w.Object.CreatedAt),
		First: w.Object.FirstSeen, Skipped: w.SkippedVersions > 0,
		Known:   in.KnownBefore && (in.KnownAt.IsZero() || w.Object.CreatedAt == nil || !w.Object.CreatedAt.Before(in.KnownAt.Truncate(time.Second))),
		Deleted: w.Object.Verb == events.VerbDeleted || w.Object.DeletedAt != nil, DeletedAt: cleanPointer(w.Object.DeletedAt), Unselected: w.Unselected,
		Labels: w.Object.Labels, Annotations: annotations(w.Object.Annotations, w.Template),
		Generation: w.Generation, Observed: w.ObservedGeneration, Paused: w.Paused, Strategy: w.Strategy, Partition: w.Partition,
		Deadline: w.ProgressDeadlineSeconds, MinReady: w.MinReadySeconds,
		Revision: w.Revision, Current: w.CurrentRevision, Update: w.UpdateRevision,
		Counts: Counts{
			Desired: desired(w), Total: w.Replicas, Updated: w.UpdatedReplicas, Ready: w.ReadyReplicas, Available: w.AvailableReplicas,
			Unavailable: w.UnavailableReplicas, Terminating: w.TerminatingReplicas,
		},
	}
	if v.Observed > v.Generation { // a controller that was late wrote the status of the object that bore the name before
		v.Observed, v.Current, v.Update, v.Counts = 0, "", "", Counts{Desired: v.Counts.Desired}
		if w.Kind == events.WorkloadKindDaemonset {
			v.Counts.Desired = 0
		}
	}
	if w.Kind == events.WorkloadKindDaemonset {
		v.Revision = w.TemplateGeneration
	}
	if t := w.Template; t != nil {
		v.Template = Template{Digest: t.Digest, RestartedAt: t.RestartedAt, ChangedAt: cleanPointer(t.ChangedAt), SeenAt: v.At}
		if v.Paused {
			v.Template.SeenAt, v.Template.Held = time.Time{}, true
		}
		for _, image := range t.Images {
			v.Template.Images = append(v.Template.Images, events.Image(image))
		}
	}
	for _, c := range w.Conditions {
		kept := Condition{Status: c.Status, Reason: c.Reason, Message: c.Message, At: cleanPointer(c.LastUpdateTime)}
		switch c.Type {
		case "Progressing":
			v.Progress = kept
		case "ReplicaFailure":
			v.Failure = kept
		}
	}
	return v
}

func desired(w *events.ObservedWorkload) int {
	switch {
	case w.SpecReplicas != nil:
		return *w.SpecReplicas
	case w.Kind == events.WorkloadKindDaemonset:
		return 0
	default:
		return 1 // what the API server would have written
	}
}

// annotations of the workload and, over them, of its template, without those that Kubernetes keeps for itself.
func annotations(workload map[string]string, template *events.PodTemplate) map[string]string {
	merged := maps.Clone(workload)
	if template != nil && len(template.Annotations) > 0 {
		if merged == nil {
			merged = make(map[string]string, len(template.Annotations))
		}
		maps.Copy(merged, template.Annotations)
	}
	maps.DeleteFunc(merged, func(name, _ string) bool { return strings.HasPrefix(name, "deployment.kubernetes.io/") })
	if len(merged) == 0 {
		return nil
	}
	return merged
}

// blind says that something may have happened unseen before this view.
func (v View) blind() bool { return v.First || v.Skipped || v.Restored || v.Absent }

// current says that the controller has taken the specification into account.
func (v View) current() bool { return v.Observed >= v.Generation }

// full says that as many pods as are wanted are there, new, and available, and no others.
func (v View) full() bool {
	c := v.Counts
	return v.current() && c.Updated == c.Desired && c.Total == c.Desired && c.Available == c.Desired
}

// settled says that as many pods as are wanted are there and available, of whatever template.
func (v View) settled() bool {
	return v.current() && v.Counts.Total == v.Counts.Desired && v.Counts.Available == v.Counts.Desired
}

// complete is the rule of each kind by which a rollout to the newest template is at its end.
func (v View) complete(kind string) bool {
	switch {
	case kind == StatefulSet && v.Strategy != onDelete:
		return v.full() && v.Update != "" && v.Current == v.Update
	case kind == DaemonSet:
		return v.current() && v.Observed > 0 && v.Counts.Updated == v.Counts.Desired && v.Counts.Available == v.Counts.Desired
	default:
		return v.full() && v.Observed > 0
	}
}

// underway says of a workload that was not known before whether a rollout is in flight, rather than that pods of a finished one are missing.
func (v View) underway(kind string) bool {
	c := v.Counts
	switch {
	case v.complete(kind):
		return false
	case c.Updated < c.Total:
		return true
	case v.Generation <= 1 && c.Updated < c.Desired:
		return true // never edited nor scaled: it is being created
	case kind == Deployment:
		return v.current() && v.Progress.Status != "" && v.Progress.Reason != reasonAvailable
	case kind == StatefulSet:
		return v.Strategy != onDelete && v.Current != v.Update
	default:
		return false
	}
}

// alike says that of two successive views that wait only the newer one need be kept.
func (v View) alike(o View, kind string) bool {
	return v.UID == o.UID && v.Deleted == o.Deleted && v.Unselected == o.Unselected && !o.blind() &&
		v.Generation == o.Generation && v.current() == o.current() && v.Revision == o.Revision && v.Update == o.Update && v.Current == o.Current &&
		v.Paused == o.Paused && v.Counts.Desired == o.Counts.Desired && v.complete(kind) == o.complete(kind) &&
		v.drained() == o.drained() && v.Progress.Reason == o.Progress.Reason && v.Failure.Status == o.Failure.Status && !o.complete(kind)
}

func (v View) drained() bool { return v.Counts.Terminating != nil && *v.Counts.Terminating == 0 }

// clean makes times equal whose JSON is equal.
func clean(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

func cleanPointer(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return clean(*t)
}

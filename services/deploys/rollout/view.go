package rollout

import (
	"maps"
	"strings"
	"time"

	"lockstep.internal/libs/podstate"
	"lockstep.internal/schemas/gen/events"
)

// Strategies that need special rules.
const (
	recreate = "Recreate"
	onDelete = "OnDelete"
)

// View holds the stored fields of one observation of a workload. The JSON names are stored, see [State].
type View struct {
	UID       string    `json:"uid"`
	Version   string    `json:"version,omitempty"`
	At        time.Time `json:"at"`
	CreatedAt time.Time `json:"created_at,omitzero"`

	// First, Skipped and Restored report a period without observations before this view: the watcher had not observed the
	// workload, had dropped versions, or the cluster was restored.
	First    bool `json:"first,omitempty"`
	Skipped  bool `json:"skipped,omitempty"`
	Restored bool `json:"restored,omitempty"`
	// HasBaseline reports that the agent had listed all selected workloads before: a workload without a state is new.
	HasBaseline bool `json:"known,omitempty"`
	// Confirmed reports that the object of the newest revision was observed after the period without observations.
	Confirmed bool `json:"heard,omitempty"`

	// Deleted: the workload was deleted, at DeletedAt if known. Absent: a full resync did not list it. Unselected: it
	// exists but the watcher does not follow it.
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

// Condition holds the stored fields of a condition of the workload.
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

// names reports whether the message of the condition contains the quoted name.
func (c Condition) names(name string) bool {
	return name != "" && strings.Contains(c.Message, `"`+name+`"`)
}

// object returns the first quoted name in the message of the condition.
func (c Condition) object() string {
	_, rest, _ := strings.Cut(c.Message, `"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// refusal explains why the cluster does not create the ReplicaSet or its pods.
func (v View) refusal() (reason, message string) {
	what, cause := "its pods", v.Failure
	if v.Progress.Reason == reasonCreateError {
		what, cause = "its ReplicaSet", v.Progress
	}
	f := podstate.Refused(what, cause.Reason, cause.Message)
	return f.Reason, f.Message
}

// newView returns the view of an observation.
func newView(in Input) View {
	w := in.Workload
	v := View{
		UID: w.Object.UID, Version: w.Object.ResourceVersion, At: normalizeTime(in.ObservedAt),
		CreatedAt: normalizePointer(w.Object.CreatedAt),
		First:     w.Object.FirstSeen, Skipped: w.SkippedVersions > 0,
		HasBaseline: in.HasBaseline && (in.BaselineAt.IsZero() || w.Object.CreatedAt == nil ||
			!w.Object.CreatedAt.Before(in.BaselineAt.Truncate(time.Second))),
		Deleted: w.Object.Verb == events.VerbDeleted ||
			w.Object.DeletedAt != nil, DeletedAt: normalizePointer(w.Object.DeletedAt), Unselected: w.Unselected,
		Labels: w.Object.Labels, Annotations: annotations(w.Object.Annotations, w.Template),
		Generation: w.Generation, Observed: w.ObservedGeneration, Paused: w.Paused, Strategy: w.Strategy,
		Partition: w.Partition,
		Deadline:  w.ProgressDeadlineSeconds, MinReady: w.MinReadySeconds,
		Revision: w.Revision, Current: w.CurrentRevision, Update: w.UpdateRevision,
		Counts: Counts{
			Desired: desired(w), Total: w.Replicas, Updated: w.UpdatedReplicas, Ready: w.ReadyReplicas,
			Available:   w.AvailableReplicas,
			Unavailable: w.UnavailableReplicas, Terminating: w.TerminatingReplicas,
		},
	}
	if v.Observed > v.Generation { // a slow controller wrote the status of the previous object
		v.Observed, v.Current, v.Update, v.Counts = 0, "", "", Counts{Desired: v.Counts.Desired}
		if w.Kind == events.WorkloadKindDaemonset {
			v.Counts.Desired = 0
		}
	}
	if w.Kind == events.WorkloadKindDaemonset {
		v.Revision = w.TemplateGeneration
	}
	if t := w.Template; t != nil {
		v.Template = Template{
			Digest: t.Digest, RestartedAt: t.RestartedAt, ChangedAt: normalizePointer(t.ChangedAt), SeenAt: v.At,
		}
		if v.Paused {
			v.Template.SeenAt, v.Template.SeenPaused = time.Time{}, true
		}
		for _, image := range t.Images {
			v.Template.Images = append(v.Template.Images, events.Image(image))
		}
	}
	for _, c := range w.Conditions {
		kept := Condition{Status: c.Status, Reason: c.Reason, Message: c.Message, At: normalizePointer(c.LastUpdateTime)}
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
		return 1 // the default of the API server
	}
}

// annotations merges the annotations of the workload and of the template; the template's override. It leaves out those
// of the Deployment controller.
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

// afterGap reports whether there was a period without observations before this view.
func (v View) afterGap() bool { return v.First || v.Skipped || v.Restored || v.Absent }

// isObserved reports whether the controller has observed the specification.
func (v View) isObserved() bool { return v.Observed >= v.Generation }

// refusesPods reports whether the cluster refuses to create pods.
func (v View) refusesPods() bool { return v.Failure.Status == "True" }

// isFull reports whether exactly the desired number of pods exists, and all are updated and available.
func (v View) isFull() bool {
	c := v.Counts
	return v.isObserved() && c.Updated == c.Desired && c.Total == c.Desired && c.Available == c.Desired
}

// isSettled reports whether exactly the desired number of pods exists, and all are available. Their template does not
// matter.
func (v View) isSettled() bool {
	return v.isObserved() && v.Counts.Total == v.Counts.Desired && v.Counts.Available == v.Counts.Desired
}

// isComplete reports whether the rollout to the newest template is complete. Each kind of workload has its own rule.
func (v View) isComplete(kind string) bool {
	switch {
	case kind == StatefulSet && v.Strategy != onDelete:
		return v.isFull() && v.Update != "" && v.Current == v.Update
	case kind == DaemonSet:
		return v.isObserved() && v.Observed > 0 && v.Counts.Updated == v.Counts.Desired &&
			v.Counts.Available == v.Counts.Desired
	default:
		return v.isFull() && v.Observed > 0
	}
}

// isInProgress reports whether an unknown workload has a rollout in flight. Missing pods of a completed rollout are not
// a rollout in flight.
func (v View) isInProgress(kind string) bool {
	c := v.Counts
	switch {
	case v.isComplete(kind):
		return false
	case c.Updated < c.Total:
		return true
	case v.Generation <= 1 && c.Updated < c.Desired:
		return true // not edited since its creation
	case kind == Deployment:
		return v.isObserved() && v.Progress.Status != "" && v.Progress.Reason != reasonAvailable
	case kind == StatefulSet:
		return v.Strategy != onDelete && v.Current != v.Update
	default:
		return false
	}
}

// isSimilar reports whether the newer one of two successive waiting views can replace the older one.
func (v View) isSimilar(o View, kind string) bool {
	return v.UID == o.UID && v.Deleted == o.Deleted && v.Unselected == o.Unselected && !o.afterGap() &&
		v.Generation == o.Generation && v.isObserved() == o.isObserved() && v.Revision == o.Revision &&
		v.Update == o.Update && v.Current == o.Current &&
		v.Paused == o.Paused && v.Counts.Desired == o.Counts.Desired && v.isComplete(kind) == o.isComplete(kind) &&
		(v.Counts.Updated > 0) == (o.Counts.Updated > 0) && // only pods show which ReplicaSet is the newest one
		v.isDrained() == o.isDrained() && v.Progress.Reason == o.Progress.Reason && v.Failure.Status == o.Failure.Status &&
		!o.isComplete(kind)
}

func (v View) isDrained() bool { return v.Counts.Terminating != nil && *v.Counts.Terminating == 0 }

// normalizeTime returns t in UTC without a monotonic clock, so that times with equal JSON are equal.
func normalizeTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

func normalizePointer(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return normalizeTime(*t)
}

package watcher

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
)

// observedWorkload says of one that is not followed any more no more than that. Metadata without an update type is what the event's id is made of, to which it
// does not matter what was dropped before.
func observedWorkload(meta events.ObjectMeta, d Delivery, w *kube.Workload) events.ObservedWorkload {
	observed := events.ObservedWorkload{Object: meta, Kind: events.WorkloadKind(w.Kind), Unselected: d.Unselected}
	if meta.UpdateType != "" {
		observed.SkippedVersions = d.Skipped
	}
	if !w.Followed {
		return observed
	}
	observed.Generation = natural(w.Generation)
	observed.SpecReplicas = count(w.Replicas)
	observed.Paused = w.Paused
	observed.Strategy = w.Strategy
	observed.Partition = natural(w.Partition)
	observed.ProgressDeadlineSeconds = count(w.ProgressDeadline)
	observed.MinReadySeconds = natural(w.MinReadySeconds)
	observed.Template = podTemplate(&w.Template)
	observed.Revision = revision(w)
	observed.TemplateGeneration = numberOf(w.TemplateGeneration)

	status := &w.Status
	observed.HasStatus = status.Written
	observed.ObservedGeneration = natural(status.ObservedGeneration)
	observed.CurrentRevision, observed.UpdateRevision = status.CurrentRevision, status.UpdateRevision
	observed.Replicas = natural(status.Replicas)
	observed.UpdatedReplicas = natural(status.Updated)
	observed.ReadyReplicas = natural(status.Ready)
	observed.AvailableReplicas = natural(status.Available)
	observed.UnavailableReplicas = natural(status.Unavailable)
	observed.TerminatingReplicas = count(status.Terminating)
	for i := range status.Conditions {
		c := &status.Conditions[i]
		observed.Conditions = appendCondition(observed.Conditions, events.Condition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastTransitionTime: timeOf(c.LastTransitioned), LastUpdateTime: timeOf(c.LastUpdated),
		})
	}
	return observed
}

func podTemplate(t *kube.Template) *events.PodTemplate {
	template := &events.PodTemplate{
		Digest: t.Digest, RestartedAt: t.RestartedAt, ChangedBy: t.By, Labels: t.Labels, Annotations: t.Annotations,
		Images: make([]events.TemplateImage, 0, len(t.Images)),
	}
	if !t.Changed.IsZero() {
		template.ChangedAt = &t.Changed
	}
	for _, image := range t.Images {
		template.Images = append(template.Images, events.TemplateImage{Container: image.Container, Image: image.Image})
	}
	return template
}

func observedRevision(meta events.ObjectMeta, r *kube.Revision) events.ObservedWorkloadRevision {
	observed := events.ObservedWorkloadRevision{
		Object: meta, Kind: events.WorkloadRevisionKind(r.Kind), Workload: r.Owner.Name, WorkloadUID: r.Owner.UID,
		Revision: natural(r.Number), TemplateHash: r.Hash,
	}
	for _, number := range r.History {
		observed.RevisionHistory = append(observed.RevisionHistory, natural(number))
	}
	return observed
}

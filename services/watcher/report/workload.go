package report

import (
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/delivery"
	"lockstep.internal/services/watcher/object"
)

// observedWorkload reports only the identity of an unselected workload. observation calls it with an empty update type
// to compute the digest. SkippedVersions is then omitted.
func observedWorkload(meta events.ObjectMeta, d delivery.Delivery, w *object.Workload) events.ObservedWorkload {
	observed := events.ObservedWorkload{Object: meta, Kind: events.WorkloadKind(w.Kind), Unselected: d.Unselected}
	if meta.UpdateType != "" {
		observed.SkippedVersions = d.Skipped
	}
	if !w.Selected {
		return observed
	}
	observed.Generation = nonNegative(w.Generation)
	observed.SpecReplicas = count(w.Replicas)
	observed.Paused = w.Paused
	observed.Strategy = w.Strategy
	observed.Partition = nonNegative(w.Partition)
	observed.ProgressDeadlineSeconds = count(w.ProgressDeadline)
	observed.MinReadySeconds = nonNegative(w.MinReadySeconds)
	if w.Template.Digest != "" {
		observed.Template = podTemplate(&w.Template)
	}
	observed.Revision = int(w.RevisionNumber())
	observed.TemplateGeneration = numberOf(w.TemplateGeneration)

	status := &w.Status
	observed.HasStatus = status.Written
	observed.ObservedGeneration = nonNegative(status.ObservedGeneration)
	observed.CurrentRevision, observed.UpdateRevision = status.CurrentRevision, status.UpdateRevision
	observed.Replicas = nonNegative(status.Replicas)
	observed.UpdatedReplicas = nonNegative(status.Updated)
	observed.ReadyReplicas = nonNegative(status.Ready)
	observed.AvailableReplicas = nonNegative(status.Available)
	observed.UnavailableReplicas = nonNegative(status.Unavailable)
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

func podTemplate(t *object.Template) *events.PodTemplate {
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

func observedRevision(meta events.ObjectMeta, r *object.Revision) events.ObservedWorkloadRevision {
	observed := events.ObservedWorkloadRevision{
		Object: meta, Kind: events.WorkloadRevisionKind(r.Kind), Workload: r.Owner.Name, WorkloadUID: r.Owner.UID,
		Revision: nonNegative(r.Number), TemplateHash: r.Hash,
	}
	for _, number := range r.History {
		observed.RevisionHistory = append(observed.RevisionHistory, nonNegative(number))
	}
	return observed
}

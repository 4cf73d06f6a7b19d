package observed

import (
	"lockstep.internal/schemas/gen/events"
)

// workload reads the data of an observed workload; false when it has not understood it.
func (r *reader) workload(data []byte, w *events.ObservedWorkload) bool {
	r.begin(data)
	met := false
	r.object(func(name []byte) {
		switch string(name) {
		case "object":
			r.lost = r.lost || met
			met = true
			r.meta(&w.Object)
		case "kind":
			w.Kind = events.WorkloadKind(r.text())
		case "template":
			r.lost = r.lost || w.Template != nil
			w.Template = r.template()
		case "conditions":
			r.lost = r.lost || w.Conditions != nil
			w.Conditions = make([]events.Condition, 0, usualConditions)
			r.array(func() {
				var c events.Condition
				r.condition(&c)
				w.Conditions = append(w.Conditions, c)
			})
		case "strategy":
			w.Strategy = r.text()
		case "current_revision":
			w.CurrentRevision = r.text()
		case "update_revision":
			w.UpdateRevision = r.text()
		case "has_status":
			w.HasStatus = r.truth()
		case "paused":
			w.Paused = r.truth()
		case "unselected":
			w.Unselected = r.truth()
		case "progress_deadline_seconds":
			w.ProgressDeadlineSeconds = r.numberPointer()
		case "spec_replicas":
			w.SpecReplicas = r.numberPointer()
		case "terminating_replicas":
			w.TerminatingReplicas = r.numberPointer()
		default:
			if count := workloadCount(w, name); count != nil {
				*count = r.number()
				return
			}
			r.lost = true
		}
	})
	return r.end()
}

// usualConditions of a Deployment.
const usualConditions = 2

// workloadCount is the field of a name that is a number; nil for no such name.
func workloadCount(w *events.ObservedWorkload, name []byte) *int {
	switch string(name) {
	case "available_replicas":
		return &w.AvailableReplicas
	case "generation":
		return &w.Generation
	case "min_ready_seconds":
		return &w.MinReadySeconds
	case "observed_generation":
		return &w.ObservedGeneration
	case "partition":
		return &w.Partition
	case "ready_replicas":
		return &w.ReadyReplicas
	case "replicas":
		return &w.Replicas
	case "revision":
		return &w.Revision
	case "skipped_versions":
		return &w.SkippedVersions
	case "template_generation":
		return &w.TemplateGeneration
	case "unavailable_replicas":
		return &w.UnavailableReplicas
	case "updated_replicas":
		return &w.UpdatedReplicas
	default:
		return nil
	}
}

// revision reads the data of an observed revision; false when it has not understood it.
func (r *reader) revision(data []byte, v *events.ObservedWorkloadRevision) bool {
	r.begin(data)
	met := false
	r.object(func(name []byte) {
		switch string(name) {
		case "object":
			r.lost = r.lost || met
			met = true
			r.meta(&v.Object)
		case "kind":
			v.Kind = events.WorkloadRevisionKind(r.text())
		case "revision":
			v.Revision = r.number()
		case "revision_history":
			r.lost = r.lost || v.RevisionHistory != nil
			v.RevisionHistory = []int{}
			r.array(func() { v.RevisionHistory = append(v.RevisionHistory, r.number()) })
		case "template_hash":
			v.TemplateHash = r.text()
		case "workload":
			v.Workload = r.text()
		case "workload_uid":
			v.WorkloadUID = r.text()
		default:
			r.lost = true
		}
	})
	return r.end()
}

func (r *reader) meta(m *events.ObjectMeta) {
	r.object(func(name []byte) {
		switch string(name) {
		case "annotations":
			r.lost = r.lost || m.Annotations != nil
			m.Annotations = r.pairs()
		case "cluster_uid":
			m.ClusterUID = r.text()
		case "created_at":
			m.CreatedAt = r.timePointer()
		case "deleted_at":
			m.DeletedAt = r.timePointer()
		case "first_seen":
			m.FirstSeen = r.truth()
		case "labels":
			r.lost = r.lost || m.Labels != nil
			m.Labels = r.pairs()
		case "name":
			m.Name = r.text()
		case "namespace":
			m.Namespace = r.text()
		case "observed_at":
			m.ObservedAt = r.time()
		case "resource_version":
			m.ResourceVersion = unescaped(string(r.raw())) // which does not come again
		case "resync_id":
			m.ResyncID = r.text()
		case "uid":
			m.UID = r.text()
		case "update_type":
			m.UpdateType = events.UpdateType(r.text())
		case "verb":
			m.Verb = events.Verb(r.text())
		case "workspace_id":
			m.WorkspaceID = r.text()
		default:
			r.lost = true
		}
	})
}

func (r *reader) condition(c *events.Condition) {
	r.object(func(name []byte) {
		switch string(name) {
		case "last_transition_time":
			c.LastTransitionTime = r.timePointer()
		case "last_update_time":
			c.LastUpdateTime = r.timePointer()
		case "message":
			c.Message = r.text()
		case "reason":
			c.Reason = r.text()
		case "status":
			c.Status = r.text()
		case "type":
			c.Type = r.text()
		default:
			r.lost = true
		}
	})
}

// template reads a pod template. One that was read lately is given again.
func (r *reader) template() *events.PodTemplate {
	begin := r.at
	part := r.part()
	if r.lost {
		return nil
	}
	s := r.templates.slot(part)
	if s.text == string(part) {
		return s.value
	}
	r.at = begin
	t := &events.PodTemplate{}
	r.object(func(name []byte) {
		switch string(name) {
		case "annotations":
			r.lost = r.lost || t.Annotations != nil
			t.Annotations = r.pairs()
		case "changed_at":
			t.ChangedAt = r.timePointer()
		case "changed_by":
			t.ChangedBy = r.text()
		case "digest":
			t.Digest = r.text()
		case "images":
			r.lost = r.lost || t.Images != nil
			t.Images = []events.TemplateImage{}
			r.array(func() {
				var i events.TemplateImage
				r.image(&i)
				t.Images = append(t.Images, i)
			})
		case "labels":
			r.lost = r.lost || t.Labels != nil
			t.Labels = r.pairs()
		case "restarted_at":
			t.RestartedAt = r.text()
		default:
			r.lost = true
		}
	})
	if !r.lost && len(part) <= longestPart {
		s.text, s.value = string(part), t
	}
	return t
}

func (r *reader) image(i *events.TemplateImage) {
	r.object(func(name []byte) {
		switch string(name) {
		case "container":
			i.Container = r.text()
		case "image":
			i.Image = r.text()
		default:
			r.lost = true
		}
	})
}

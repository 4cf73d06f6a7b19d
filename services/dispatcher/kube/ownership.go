package kube

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationSecretKeys are the keys of a Secret, sorted and joined by commas: what the dispatcher
// must own of its data if nobody has touched it.
const annotationSecretKeys = "lockstep.dev/secret-keys"

// changed tells whether an application has changed an object: because it was not there, was another
// one, or because the dispatcher did not own all that it applies. Whoever changes or removes a
// field takes it away from its owner, so that this finds every edit, and no change of a status or
// of what others have added.
func changed(before, after *metav1.PartialObjectMetadata) bool {
	if before == nil || before.UID != after.UID {
		return true
	}
	if before.ResourceVersion == after.ResourceVersion {
		return false
	}
	return !bytes.Equal(applied(before.ManagedFields), applied(after.ManagedFields))
}

// applied is the set of fields that the dispatcher owns; nil when it owns none.
func applied(entries []metav1.ManagedFieldsEntry) []byte {
	for i := range entries {
		e := &entries[i]
		if e.Manager == FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" &&
			e.FieldsV1 != nil {
			return e.FieldsV1.GetRawBytes()
		}
	}
	return nil
}

// intact tells from a Secret's owners, without its values, whether its data are those that were
// applied: the dispatcher owns every key, and nobody else any.
func intact(live *metav1.PartialObjectMetadata) bool {
	owned := dataOf(applied(live.ManagedFields))
	if strings.Join(slices.Sorted(maps.Keys(owned)), ",") != live.Annotations[annotationSecretKeys] {
		return false
	}
	for i := range live.ManagedFields {
		e := &live.ManagedFields[i]
		ours := e.Manager == FieldManager && e.Operation == metav1.ManagedFieldsOperationApply
		if !ours && e.FieldsV1 != nil && len(dataOf(e.FieldsV1.GetRawBytes())) > 0 {
			return false
		}
	}
	return true
}

// dataOf are the keys of a Secret's data in a set of fields.
func dataOf(fields []byte) map[string]struct{} {
	var set struct {
		Data map[string]json.RawMessage `json:"f:data"`
	}
	if len(fields) == 0 || json.Unmarshal(fields, &set) != nil { // then nobody is known to own anything
		return nil
	}
	keys := make(map[string]struct{}, len(set.Data))
	for key := range set.Data {
		if name, isKey := strings.CutPrefix(key, "f:"); isKey {
			keys[name] = struct{}{}
		}
	}
	return keys
}

package kube

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationSecretKeys lists the keys of a Secret, sorted and joined by commas. If the dispatcher owns other keys,
// the data was changed.
const annotationSecretKeys = "lockstep.dev/secret-keys"

// changed reports whether the apply changed the object: the object did not exist, it was another one, or the
// dispatcher did not own all applied fields. A client that changes or removes a field becomes its owner.
// So managedFields reveal every edit of an applied field. Changes of the status and added fields do not count.
func changed(before, after *metav1.PartialObjectMetadata) bool {
	if before == nil || before.UID != after.UID {
		return true
	}
	if before.ResourceVersion == after.ResourceVersion {
		return false
	}
	return !bytes.Equal(ownedFields(before.ManagedFields), ownedFields(after.ManagedFields))
}

// ownedFields returns the fields that the dispatcher owns, or nil.
func ownedFields(entries []metav1.ManagedFieldsEntry) []byte {
	for i := range entries {
		e := &entries[i]
		if e.Manager == FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" &&
			e.FieldsV1 != nil {
			return e.FieldsV1.GetRawBytes()
		}
	}
	return nil
}

// isUnmodified reports from managedFields whether the dispatcher alone owns all keys of the Secret's data.
func isUnmodified(live *metav1.PartialObjectMetadata) bool {
	owned := dataKeys(ownedFields(live.ManagedFields))
	if strings.Join(slices.Sorted(maps.Keys(owned)), ",") != live.Annotations[annotationSecretKeys] {
		return false
	}
	for i := range live.ManagedFields {
		e := &live.ManagedFields[i]
		ours := e.Manager == FieldManager && e.Operation == metav1.ManagedFieldsOperationApply
		if !ours && e.FieldsV1 != nil && len(dataKeys(e.FieldsV1.GetRawBytes())) > 0 {
			return false
		}
	}
	return true
}

// dataKeys returns the keys of a Secret's data in a set of fields.
func dataKeys(fields []byte) map[string]struct{} {
	var set struct {
		Data map[string]json.RawMessage `json:"f:data"`
	}
	if len(fields) == 0 || json.Unmarshal(fields, &set) != nil { // no owned fields
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

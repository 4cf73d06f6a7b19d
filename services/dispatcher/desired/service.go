package desired

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// serviceFields are the fields of a Service's spec that may be set. All others could make the Service reachable from
// outside of the cluster, or send requests of the cluster elsewhere, such as externalIPs and externalName.
var serviceFields = []string{
	"type", "clusterIP", "clusterIPs", "ports", "selector", "publishNotReadyAddresses", "sessionAffinity",
	"sessionAffinityConfig", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy", "trafficDistribution",
} //nolint:gochecknoglobals // a constant

var servicePortFields = []string{
	"name", "port", "targetPort", "protocol", "appProtocol",
} //nolint:gochecknoglobals // a constant

// checkService returns nil for the manifest of a Service that can be reached in the cluster only: it has the type
// ClusterIP, and an address that the cluster chooses or none.
func checkService(manifest map[string]any) error {
	if manifest["spec"] == nil {
		return nil
	}
	spec, ok := manifest["spec"].(map[string]any)
	if !ok {
		return errors.New("spec is not an object")
	}
	if err := checkFields("spec", spec, serviceFields); err != nil {
		return err
	}
	if kind, set := spec["type"]; set && kind != "ClusterIP" {
		return fmt.Errorf("spec.type %v must be ClusterIP", kind)
	}
	addresses, isList := spec["clusterIPs"].([]any)
	if !isList && spec["clusterIPs"] != nil {
		return errors.New("spec.clusterIPs is not a list")
	}
	for _, address := range append(slices.Clone(addresses), spec["clusterIP"]) {
		if address != nil && address != "" && address != "None" {
			return fmt.Errorf("the cluster IP %v must be None or empty", address)
		}
	}
	ports, isList := spec["ports"].([]any)
	if !isList && spec["ports"] != nil {
		return errors.New("spec.ports is not a list")
	}
	for _, p := range ports {
		port, ok := p.(map[string]any)
		if !ok {
			return errors.New("spec.ports has an entry that is not an object")
		}
		if err := checkFields("spec.ports", port, servicePortFields); err != nil {
			return err
		}
	}
	return nil
}

// checkFields returns an error if the object has a field that is not allowed.
func checkFields(path string, object map[string]any, allowed []string) error {
	for _, field := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(allowed, field) {
			return fmt.Errorf("%s.%.80s must not be set; allowed are %s", path, field, strings.Join(allowed, ", "))
		}
	}
	return nil
}

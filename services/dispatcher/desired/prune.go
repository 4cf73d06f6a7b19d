package desired

import "slices"

// Prune returns the objects of the inventory that are no longer desired, in reverse order: the object applied last
// is first. Namespaces are never pruned, because that would delete everything in them: only termination does.
func Prune(inventory, desired []Reference) []Reference {
	wanted := make(map[Reference]bool, len(desired))
	for _, reference := range desired {
		wanted[reference] = true
	}
	var pruned []Reference
	for _, reference := range slices.Backward(inventory) {
		if !wanted[reference] && reference.Kind != KindNamespace {
			pruned = append(pruned, reference)
			wanted[reference] = true
		}
	}
	return pruned
}

// Union returns the inventory, followed by the references that are not in it, without duplicates.
func Union(inventory, more []Reference) []Reference {
	seen := make(map[Reference]bool, len(inventory)+len(more))
	union := make([]Reference, 0, len(inventory)+len(more))
	for _, list := range [][]Reference{inventory, more} {
		for _, reference := range list {
			if !seen[reference] {
				seen[reference] = true
				union = append(union, reference)
			}
		}
	}
	return union
}

package desired

import "slices"

// Prune is the part of the inventory that is no longer desired, in the order of the inventory
// reversed: what was applied last goes first. A namespace is never pruned, since everything in it
// would go too; only termination deletes it.
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

// Union is the inventory followed by what it does not hold yet, each once.
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

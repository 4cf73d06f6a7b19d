package observed

import "hash/maphash"

// How much is remembered. Each is a power of two.
const (
	rememberedTexts     = 1 << 13
	rememberedPlaces    = 1 << 13
	rememberedMaps      = 1 << 12
	rememberedTemplates = 1 << 12
	// longestText that is remembered, and longestPart of what has structure, in bytes.
	longestText = 256
	longestPart = 4096
)

// kept remembers values by texts, of which none is empty. Two texts for which there is one slot between them displace each other.
type kept[V any] struct {
	seed  maphash.Seed
	slots []slot[V]
}

// slot has the value of its text.
type slot[V any] struct {
	text  string
	value V
}

func newKept[V any](slots int) *kept[V] {
	return &kept[V]{seed: maphash.MakeSeed(), slots: make([]slot[V], slots)}
}

// slot for a text, which may have another's value.
func (k *kept[V]) slot(text []byte) *slot[V] { return k.at(maphash.Bytes(k.seed, text)) }

func (k *kept[V]) slotOf(text string) *slot[V] { return k.at(maphash.String(k.seed, text)) }

func (k *kept[V]) at(hash uint64) *slot[V] { return &k.slots[hash&uint64(len(k.slots)-1)] }

package feed

import (
	"container/list"
	"sync"

	"signalbox/appliance/room"
)

// cache keeps encoded bodies by item, least recently used out first, within a number of bytes. Only bodies of committed
// items may be put in: the number of an item that was rolled back is given to another.
type cache struct {
	mu    sync.Mutex
	limit int64
	used  int64
	order *list.List // of *Body, newest in front
	items map[int64]*list.Element
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, order: list.New(), items: map[int64]*list.Element{}}
}

// get returns the body of an item as it is for a room of that channel type, nil for none.
func (c *cache) get(itemNo int64, channel room.ChannelType) *Body {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.items[itemNo]
	if e == nil || e.Value.(*Body).channel != channel {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*Body)
}

func (c *cache) put(b *Body) {
	if b.size() > c.limit/8 {
		return // one giant must not push out everything else
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.items[b.itemNo]; e != nil {
		c.used += b.size() - e.Value.(*Body).size()
		e.Value = b
		c.order.MoveToFront(e)
	} else {
		c.used += b.size()
		c.items[b.itemNo] = c.order.PushFront(b)
	}
	for c.used > c.limit {
		last := c.order.Back()
		old := c.order.Remove(last).(*Body)
		delete(c.items, old.itemNo)
		c.used -= old.size()
	}
}
